// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The ELF files that the process has mapped, with their build-ids.
#ifndef OFFHEAP_IMAGES_H
#define OFFHEAP_IMAGES_H

#include "json.h"

void images_list(struct json *json);

#endif
