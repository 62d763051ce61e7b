// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The kernel reads the new mask before it looks at the operation. There is no operation ~0, so the call fails with
// EFAULT or EINVAL and changes nothing. abseil's AddressIsReadable does the same. Every filter of system calls allows
// this one, since libc cannot do without it.
#include "readable.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

bool readable(uintptr_t address) {
    return syscall(SYS_rt_sigprocmask, ~0, address, NULL, 8) >= 0 || errno != EFAULT;
}
