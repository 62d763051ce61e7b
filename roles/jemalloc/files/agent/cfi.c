// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// libgcc's unwinder looks the table of each frame up anew, in each sample, and carries out its instructions. A program
// samples at the same places again and again. So what they come to is remembered by return address: the canonical frame
// address (CFA, the stack pointer in the caller) as a distance from the stack or the frame pointer, and how far below it
// the return address and the caller's frame pointer lie. Nearly all frames are of this form; what is not is left to libgcc.
// Format: DWARF 5, section 6.4, and the "exception frames" of the Linux Standard Base Core, section 10.6.
//
// Only code from files is remembered. Code that a program makes may be another in a moment, at the same address. That of a
// file may be, too, between dlclose and the agent's next look (images.c), a second at most: for that long a stack may be
// named wrong, if a return address is at the very place of another. Nothing else can happen then, since a walk reads only
// its own stack.
#include "cfi.h"

#include "ranges.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#if defined(__x86_64__)
enum { POINTER = 6, STACK = 7, RETURN = 16 };   // DWARF's numbers of the registers
#elif defined(__aarch64__)
enum { POINTER = 29, STACK = 31, RETURN = 30 };
#endif

#define UNCHECKED __attribute__((no_sanitize("address", "thread")))   // it reads frames, which are no C objects
#define WORD ((int64_t)sizeof(uintptr_t))
#define REMEMBERED (1u << 13)
#define DEPTH 8   // of DW_CFA_remember_state

enum from { UNKNOWN, FROM_STACK, FROM_POINTER, FIRST, HARD };

union rule {
    uint64_t word;
    struct {
        uint64_t from : 4;
        uint64_t address : 14, pointer : 14;   // words below the CFA; pointer 0: still in its register
        int64_t distance : 32;                 // of the CFA
    };
};

// A slot holds a rule and its return address, which is hidden with the rule. A reader that meets two writers' halves
// finds the address of neither, so there is no lock.
static struct {
    _Atomic uint64_t hidden, rule;
} remembered[REMEMBERED];

// As in unwind-dw2-fde.h.
struct bases {
    void *text, *data;
    const uint8_t *start;   // of the function
};

// As in glibc's bits/dl_find_object.h.
struct object {
    unsigned long long flags;
    void *start, *end, *link_map;
    const uint8_t *index;   // in front of its tables
    unsigned long long reserved[7];
};

static const uint8_t *(*find_table)(void *address, struct bases *bases);
static int (*find_object)(void *address, struct object *object);
static struct code unwinder;

void cfi_find_tables(void *find_fde, void *dl_find_object) {
    *(void **)&find_table = find_fde;
    *(void **)&find_object = dl_find_object;
}

void cfi_find_unwinder(void) {
    (void)ranges_executable((uintptr_t)find_table, &unwinder);
}

static uint64_t hide(uint64_t address, union rule rule) {
    return address ^ rule.word * UINT64_C(0x9e3779b97f4a7c15);
}

static size_t slot_of(uint64_t address) {
    return address * UINT64_C(0x9e3779b97f4a7c15) >> 32 & (REMEMBERED - 1);
}

void cfi_forget(void) {
    for (size_t i = 0; i < REMEMBERED; i++)
        if (atomic_load_explicit(&remembered[i].rule, memory_order_relaxed))
            atomic_store_explicit(&remembered[i].rule, 0, memory_order_relaxed);
}

// One register of the caller: in its own, in memory at the CFA plus `offset`, nowhere, or as only libgcc can say.
struct saved {
    enum { SAME, AT, NOWHERE, BY_OTHERS } how;
    int64_t offset;
};

struct row {
    struct saved address, pointer;
    uint64_t base;   // the register that the CFA is counted from
    int64_t distance;
    bool hard;
};

struct table {
    const uint8_t *instructions, *end;
    uint64_t length;   // of the function
    uint64_t code_factor;
    int64_t data_factor;
};

static uint64_t leb(const uint8_t **at, bool has_sign) {
    uint64_t value = 0;
    unsigned shift = 0, byte;
    do {
        byte = *(*at)++;
        value |= shift < 64 ? (uint64_t)(byte & 0x7f) << shift : 0;
        shift += 7;
    } while (byte & 0x80);
    return has_sign && shift < 64 && byte & 0x40 ? value | -(UINT64_C(1) << shift) : value;
}

static uint64_t unsigned_leb(const uint8_t **at) { return leb(at, false); }

static int64_t signed_leb(const uint8_t **at) { return (int64_t)leb(at, true); }

static uint32_t number(const uint8_t *at, size_t size) {
    uint32_t value = 0;
    uint16_t half;
    if (size == 2) {
        memcpy(&half, at, sizeof half);
        return half;
    }
    memcpy(&value, at, size);   // both platforms are little-endian
    return value;
}

// Bytes of an address in this encoding (DW_EH_PE_*); 0: not one of a fixed size, or at an aligned place.
static size_t encoded(uint8_t encoding) {
    if ((encoding & 0x70) == 0x50)
        return 0;
    switch (encoding & 0x07) {
    case 0: return sizeof(uintptr_t);
    case 2: return 2;
    case 3: return 4;
    case 4: return 8;
    default: return 0;
    }
}

// The instructions that all functions of a kind begin with, and those of this one. False where we do not know the form.
static bool open_tables(const uint8_t *entry, struct table *common, struct table *own) {
    uint32_t length = number(entry, 4), common_length;
    const uint8_t *start = entry + 4 - number(entry + 4, 4), *at = start + 8;   // of the common part (CIE)
    const char *augmentation = (const char *)at + 1;
    uint8_t version = *at, encoding = 0;
    common_length = number(start, 4);
    if (length == UINT32_MAX || common_length == UINT32_MAX || (version != 1 && version != 3))
        return false;
    at += 1 + strlen(augmentation) + 1;
    common->code_factor = unsigned_leb(&at);
    common->data_factor = signed_leb(&at);
    if ((version == 1 ? *at++ : unsigned_leb(&at)) != RETURN || (*augmentation && *augmentation != 'z'))
        return false;
    if (*augmentation) {
        uint64_t size = unsigned_leb(&at);
        const uint8_t *data = at;
        for (const char *letter = augmentation + 1; *letter; letter++) {
            if (*letter == 'R') {
                encoding = *data++;
            } else if (*letter == 'L') {
                data++;
            } else if (*letter == 'P' && encoded(*data)) {
                data += 1 + encoded(*data);
            } else if (*letter != 'B') {
                return false;   // S: a signal's handler returns here
            }
        }
        at += size;
    }
    common->instructions = at;
    common->end = start + 4 + common_length;
    *own = *common;
    at = entry + 8 + encoded(encoding);   // behind the function's start
    own->length = 0;
    memcpy(&own->length, at, encoded(encoding));
    at += encoded(encoding);
    if (*augmentation) {
        uint64_t size = unsigned_leb(&at);
        at += size;
    }
    own->instructions = at;
    own->end = entry + 4 + length;
    return encoded(encoding) != 0;
}

static void note(struct row *row, uint64_t which, struct saved saved) {
    if (which == RETURN)
        row->address = saved;
    else if (which == POINTER)
        row->pointer = saved;
    else if (which == STACK)
        row->hard = true;   // it is the CFA in all but the oddest code
}

static void restore(struct row *row, uint64_t which, const struct row *first) {
    if (which == RETURN)
        row->address = first->address;
    else if (which == POINTER)
        row->pointer = first->pointer;
}

// Carries out instructions up to where `limit` bytes of the function lie behind.
static void carry_out(const struct table *table, uint64_t limit, const struct row *first, struct row *row) {
    struct row kept[DEPTH];
    unsigned depth = 0;
    uint64_t place = 0, which;
    const uint8_t *at = table->instructions;
    while (at < table->end && place < limit && !row->hard) {
        uint8_t operation = *at++, low = operation & 0x3f;
        switch (operation & 0xc0) {
        case 0x40:   // DW_CFA_advance_loc
            place += low * table->code_factor;
            continue;
        case 0x80:   // DW_CFA_offset
            note(row, low, (struct saved){AT, (int64_t)unsigned_leb(&at) * table->data_factor});
            continue;
        case 0xc0:   // DW_CFA_restore
            restore(row, low, first);
            continue;
        }
        switch (operation) {
        case 0x00:   // DW_CFA_nop
            break;
        case 0x02:   // DW_CFA_advance_loc1, 2, 4
        case 0x03:
        case 0x04: {
            size_t size = (size_t)1 << (operation - 2);
            place += number(at, size) * table->code_factor;
            at += size;
            break;
        }
        case 0x05:   // DW_CFA_offset_extended
            which = unsigned_leb(&at);
            note(row, which, (struct saved){AT, (int64_t)unsigned_leb(&at) * table->data_factor});
            break;
        case 0x06:   // DW_CFA_restore_extended
            restore(row, unsigned_leb(&at), first);
            break;
        case 0x07:   // DW_CFA_undefined
            note(row, unsigned_leb(&at), (struct saved){NOWHERE, 0});
            break;
        case 0x08:   // DW_CFA_same_value
            note(row, unsigned_leb(&at), (struct saved){SAME, 0});
            break;
        case 0x09:   // DW_CFA_register
            note(row, unsigned_leb(&at), (struct saved){BY_OTHERS, 0});
            unsigned_leb(&at);
            break;
        case 0x0a:   // DW_CFA_remember_state
            row->hard |= depth == DEPTH;
            if (depth < DEPTH)
                kept[depth++] = *row;
            break;
        case 0x0b:   // DW_CFA_restore_state
            row->hard |= depth == 0;
            if (depth > 0)
                *row = kept[--depth];
            break;
        case 0x0c:   // DW_CFA_def_cfa
            row->base = unsigned_leb(&at);
            row->distance = (int64_t)unsigned_leb(&at);
            break;
        case 0x0d:   // DW_CFA_def_cfa_register
            row->base = unsigned_leb(&at);
            break;
        case 0x0e:   // DW_CFA_def_cfa_offset
            row->distance = (int64_t)unsigned_leb(&at);
            break;
        case 0x10:   // DW_CFA_expression
        case 0x16:   // DW_CFA_val_expression
            note(row, unsigned_leb(&at), (struct saved){BY_OTHERS, 0});
            which = unsigned_leb(&at);
            at += which;
            break;
        case 0x11:   // DW_CFA_offset_extended_sf
            which = unsigned_leb(&at);
            note(row, which, (struct saved){AT, signed_leb(&at) * table->data_factor});
            break;
        case 0x2d:   // DW_CFA_AARCH64_negate_ra_state; a signature is removed wherever there is one (unwind.c)
            break;
        case 0x2e:   // DW_CFA_GNU_args_size
            unsigned_leb(&at);
            break;
        default:
            row->hard = true;   // the CFA by an expression, and what compilers do not write
        }
    }
}

// How many words below the CFA; 0: not a place that a rule can say.
static uint64_t words_below(struct saved saved) {
    return saved.how == AT && saved.offset < 0 && saved.offset % WORD == 0 && -saved.offset / WORD < 1 << 14
               ? (uint64_t)(-saved.offset / WORD)
               : 0;
}

static union rule rule_of(const struct row *row) {
    union rule rule = {.from = HARD};
    if (row->address.how == NOWHERE && !row->hard)
        return (union rule){.from = FIRST};
    bool plain = words_below(row->address) && (row->pointer.how == SAME || words_below(row->pointer)) &&
                 (row->base == STACK || row->base == POINTER) && row->distance == (int32_t)row->distance;
    if (row->hard || !plain)
        return rule;
    rule.from = row->base == STACK ? FROM_STACK : FROM_POINTER;
    rule.address = words_below(row->address) & 0x3fff;
    rule.pointer = words_below(row->pointer) & 0x3fff;
    rule.distance = (int32_t)row->distance;
    return rule;
}

// Of the function at or before `address`, by a sorted index as all linkers write it; NULL where it is another.
static const uint8_t *find_by_index(const uint8_t *index, uintptr_t address, struct bases *bases) {
    if (memcmp(index, (const uint8_t[]){1, 0x1b, 0x03, 0x3b}, 4))
        return NULL;
    const int32_t(*rows)[2] = (const void *)(index + 12);   // starts and tables, as distances from the index
    uint32_t low = 0, high = number(index + 8, 4);
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if ((uintptr_t)(index + rows[middle][0]) <= address)
            low = middle + 1;
        else
            high = middle;
    }
    if (!low)
        return NULL;
    bases->start = index + rows[low - 1][0];
    return index + rows[low - 1][1];
}

// libgcc looks first among the tables that a program registers for code it makes, and holds a lock while it allocates for
// these: this thread may be in the middle of that (`inner`). What a file has, glibc 2.35 finds without.
static const uint8_t *find(uintptr_t address, struct bases *bases, bool inner) {
    struct object object;
    const uint8_t *entry = NULL;
    if (find_object && !find_object((void *)address, &object) && object.index)
        entry = find_by_index(object.index, address, bases);
    return entry || inner ? entry : find_table((void *)address, bases);
}

// As libgcc, of the instruction before the return address: the call may be the last of its function.
static union rule look_up(uintptr_t address, bool inner) {
    struct bases bases;
    struct table common, own;
    struct code code = {0, 0, false};
    if (!find_table)
        return (union rule){.from = HARD};
    const uint8_t *entry = find(address - 1, &bases, inner);
    bool from_file = ranges_executable(address, &code) && code.file;
    union rule rule = {.from = entry || from_file ? HARD : UNKNOWN};
    if (entry && open_tables(entry, &common, &own) && address - 1 - (uintptr_t)bases.start < own.length) {
        struct row first = {.base = UINT64_MAX}, row;
        carry_out(&common, UINT64_MAX, &first, &first);
        row = first;
        carry_out(&own, address - (uintptr_t)bases.start, &first, &row);
        rule = rule_of(&row);
    }
    if (from_file && (entry || !inner)) {
        size_t slot = slot_of(address);
        atomic_store_explicit(&remembered[slot].hidden, hide(address, rule), memory_order_relaxed);
        atomic_store_explicit(&remembered[slot].rule, rule.word, memory_order_relaxed);
    }
    return rule;
}

static union rule rule_at(uintptr_t address, bool inner) {
    size_t slot = slot_of(address);
    union rule rule = {.word = atomic_load_explicit(&remembered[slot].rule, memory_order_relaxed)};
    if (rule.word && atomic_load_explicit(&remembered[slot].hidden, memory_order_relaxed) == hide(address, rule))
        return rule;
    return look_up(address, inner);
}

static UNCHECKED enum cfi_step step(struct frame *frame, uintptr_t top) {
    union rule rule = rule_at(frame->address, frame->inner);
    if (rule.from == UNKNOWN)
        return CFI_NO_TABLE;
    if (rule.from == FIRST)
        return CFI_FIRST;
    if (rule.from == HARD)
        return CFI_HARD;
    uintptr_t base = rule.from == FROM_STACK ? frame->stack : frame->pointer;
    uintptr_t caller = base + (uintptr_t)rule.distance;   // the CFA
    uint64_t deepest = rule.address > rule.pointer ? rule.address : rule.pointer;
    if (caller > top)
        return CFI_BEYOND;
    if (caller % sizeof caller || caller <= frame->stack ||
        (caller - frame->stack) / sizeof caller < deepest)
        return CFI_HARD;
    const uintptr_t *words = (const uintptr_t *)caller;
    frame->address = words[-(ptrdiff_t)rule.address];
    if (rule.pointer)
        frame->pointer = words[-(ptrdiff_t)rule.pointer];
    frame->stack = caller;
    return CFI_CALLER;
}

enum cfi_step cfi_step(struct frame *frame, uintptr_t top) {
    frame->inner |= frame->address >= unwinder.start && frame->address < unwinder.end;
    enum cfi_step came = step(frame, top);
    return came == CFI_HARD && frame->inner ? CFI_NO_TABLE : came;
}
