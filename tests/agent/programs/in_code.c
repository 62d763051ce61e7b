// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Has the address of malloc in its code (DT_TEXTREL), as assembler written by hand may: a page that nobody may write to.
__asm__(".text\n.balign 8\n.globl malloc_in_code\nmalloc_in_code: .quad malloc\n");
