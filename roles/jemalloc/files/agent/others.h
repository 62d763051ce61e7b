// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The other processes of the unit, of which there are no dumps.
#ifndef OFFHEAP_OTHERS_H
#define OFFHEAP_OTHERS_H

#include "config.h"
#include "json.h"

void others_list(struct json *json, const struct config *config);

#endif
