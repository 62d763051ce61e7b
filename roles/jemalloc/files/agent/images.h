// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The ELF files that the process has mapped, with their build-ids.
#ifndef OFFHEAP_IMAGES_H
#define OFFHEAP_IMAGES_H

#include "json.h"

void images_list(struct json *json);

// Learns what code is mapped, if the process has opened any since the last time, so that a list can say where another
// file's code lay before.
void images_note(void);

#endif
