// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Finds the entries by their relocations (elf(5)), in each object that the loader lists, and stores a hook there. What an
// entry held is remembered, and exactly that put back: the function, the program's own stub, or a stub that binds lazily.
//
// - An entry is changed only if it leads where everybody's do: to the object that our own calls lead to, through the
//   object's own stub, or through the program's (one that is not position independent has the function's address there).
//   So an object with an allocator of its own keeps it, and one that the loader has not relocated yet is left for later.
// - Some allocators have functions that others do not. We cannot call these by name, so the loader says where they are, or
//   the first entry that is bound: one that is not bound yet is changed only where the loader has said it.
// - What an allocator calls of itself is no call of the process; libc is one, and much else.
// - Pages that the loader has made read-only are opened for the store. It does that once an object is relocated. As long as
//   they can be written to, it is still at work there: to close them would kill it. Whether they can is asked with an
//   operation on a futex that changes nothing, since the answer of the memory map may not be there.
#define _GNU_SOURCE
#include "got.h"

#include "loader.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <linux/futex.h>
#include <pthread.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define JUMP_SLOT R_X86_64_JUMP_SLOT
#define GLOB_DAT R_X86_64_GLOB_DAT
#define ABSOLUTE R_X86_64_64
#elif defined(__aarch64__)
#define JUMP_SLOT R_AARCH64_JUMP_SLOT
#define GLOB_DAT R_AARCH64_GLOB_DAT
#define ABSOLUTE R_AARCH64_ABS64
#endif

#define MOST (1u << 16)   // entries; a process with a thousand objects has some thousands
#define LOOKS 60          // at an object that is not ready, a second apart

struct entry {
    uintptr_t *at;
    uintptr_t was, hook;  // hook: 0 of a pointer in data, which the program may change itself
    size_t round;         // in which it was last seen
};

struct range {
    uintptr_t start, end;
};

// An object, as far as it matters here.
struct object {
    struct range whole, relro;
    uintptr_t base;
    const ElfW(Sym) *symbols;
    const char *names;
    uintptr_t soname;              // where in `names`; 0: it has none
    const ElfW(Rela) *tables[2];   // of data, of calls
    size_t lengths[2];
    bool opened;                   // its read-only pages
};

static const struct got_hook *hooks;
static size_t hook_count;
static struct entry *entries;
static size_t count, rounds, cursor, taken;
static struct range ours, program, allocator;
static uintptr_t page_size, interpreter;
static bool allocator_is_libc, unready;
static unsigned long long opened, closed;   // objects, at the last look
static int looks;                           // still to be taken
static size_t put_back, stuck;

static bool within(const struct range *range, uintptr_t address) {
    return address >= range->start && address < range->end;
}

// glibc has relocated what the dynamic section points to; others leave it as it is in the file.
static const void *pointed(const struct dl_phdr_info *info, uintptr_t value) {
    return (const void *)(value < info->dlpi_addr ? value + info->dlpi_addr : value);
}

// False for what has no such entries.
static bool read_object(const struct dl_phdr_info *info, struct object *object) {
    const ElfW(Dyn) *dynamic = NULL;
    *object = (struct object){.whole = {UINTPTR_MAX, 0}, .base = info->dlpi_addr};
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + part->p_vaddr, end = start + part->p_memsz;
        if (part->p_type == PT_LOAD) {
            object->whole.start = start < object->whole.start ? start : object->whole.start;
            object->whole.end = end > object->whole.end ? end : object->whole.end;
        } else if (part->p_type == PT_DYNAMIC) {
            dynamic = (const ElfW(Dyn) *)start;
        } else if (part->p_type == PT_GNU_RELRO) {   // as the loader rounds it
            object->relro = (struct range){start & -page_size, end & -page_size};
        }
    }
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
        uintptr_t value = dynamic->d_un.d_val;
        switch (dynamic->d_tag) {
        case DT_SYMTAB: object->symbols = pointed(info, value); break;
        case DT_STRTAB: object->names = pointed(info, value); break;
        case DT_SONAME: object->soname = value; break;
        case DT_RELA: object->tables[0] = pointed(info, value); break;
        case DT_RELASZ: object->lengths[0] = value / sizeof(ElfW(Rela)); break;
        case DT_JMPREL: object->tables[1] = pointed(info, value); break;
        case DT_PLTRELSZ: object->lengths[1] = value / sizeof(ElfW(Rela)); break;
        default: break;
        }
    }
    return object->symbols && object->names;
}

static const struct got_hook *hook_of(const struct object *object, const ElfW(Rela) *relocation) {
    unsigned type = (unsigned)ELF64_R_TYPE(relocation->r_info);
    if ((type != JUMP_SLOT && type != GLOB_DAT && type != ABSOLUTE) || (type == ABSOLUTE && relocation->r_addend))
        return NULL;
    const char *name = object->names + object->symbols[ELF64_R_SYM(relocation->r_info)].st_name;
    for (size_t i = 0; i < hook_count; i++)
        if (*name == *hooks[i].name && !strcmp(name, hooks[i].name))
            return &hooks[i];
    return NULL;
}

// Calls `visit` for each relocation that has a hook.
static void each_entry(struct object *object, void (*visit)(struct object *, const ElfW(Rela) *, const struct got_hook *)) {
    for (int table = 0; table < 2; table++) {
        for (size_t i = 0; object->tables[table] && i < object->lengths[table]; i++) {
            const struct got_hook *hook = hook_of(object, &object->tables[table][i]);
            if (hook)
                visit(object, &object->tables[table][i], hook);
        }
    }
}

static bool can_be_written(uintptr_t *at) {
    static int nobody;
    return syscall(SYS_futex, &nobody, FUTEX_WAKE_OP_PRIVATE, 0, 0, at, FUTEX_OP(FUTEX_OP_OR, 0, FUTEX_OP_CMP_EQ, 0)) >= 0;
}

static bool store(struct object *object, uintptr_t *at, uintptr_t value) {
    if (within(&object->relro, (uintptr_t)at) && !object->opened) {
        if (can_be_written(at)) {
            unready = true;
            return false;
        }
        if (mprotect((void *)object->relro.start, object->relro.end - object->relro.start, PROT_READ | PROT_WRITE) < 0)
            return false;
        object->opened = true;
    } else if (!within(&object->relro, (uintptr_t)at) && !can_be_written(at) && (errno == EFAULT || errno == EINVAL)) {
        return false;   // in code, where an object has text relocations, or closed by the program itself
    }
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
    return true;
}

static void close_object(struct object *object) {
    if (object->opened)
        mprotect((void *)object->relro.start, object->relro.end - object->relro.start, PROT_READ);
}

// They are met in the order of the last time, as a rule.
static struct entry *find(const uintptr_t *at) {
    for (size_t i = 0; i < count; i++) {
        size_t index = (cursor + i) % count;
        if (entries[index].at == at) {
            cursor = index + 1;
            return &entries[index];
        }
    }
    return NULL;
}

static void redirect(struct object *object, const ElfW(Rela) *relocation, const struct got_hook *hook) {
    uintptr_t *at = (uintptr_t *)(object->base + relocation->r_offset), to = (uintptr_t)hook->function;
    uintptr_t was = __atomic_load_n(at, __ATOMIC_RELAXED);
    const ElfW(Sym) *symbol = &object->symbols[ELF64_R_SYM(relocation->r_info)];
    bool has_own = symbol->st_shndx != SHN_UNDEF && !within(&allocator, object->whole.start);
    struct entry *entry = find(at);
    if (was != to) {
        if (hook->own && !*hook->own && !within(&allocator, was))
            return;
        if (hook->own && !*hook->own) {
            *hook->own = (void *)was;   // a second before any thread may need it
            unready = true;
            return;
        }
        if (has_own || !(within(&allocator, was) || within(&object->whole, was) || within(&program, was))) {
            unready |= was < object->base;   // it looks as in the file
            if (entry)
                entry->round = rounds;   // it is another tool's by now
            return;
        }
        if (!entry && count == MOST)
            return;
        if (!entry)
            entry = &entries[count++];
        *entry = (struct entry){at, was, ELF64_R_TYPE(relocation->r_info) == ABSOLUTE ? 0 : to, 0};
        if (!store(object, at, to))
            return;   // and forgotten
    }
    if (entry)
        entry->round = rounds;
}

static void restore(struct object *object, const ElfW(Rela) *relocation, const struct got_hook *hook) {
    uintptr_t *at = (uintptr_t *)(object->base + relocation->r_offset);
    if (__atomic_load_n(at, __ATOMIC_RELAXED) != (uintptr_t)hook->function)
        return;   // the other table may have it, too
    const struct entry *entry = find(at);
    if (entry && store(object, at, entry->was))
        put_back++;
    else
        stuck++;
}

// Another copy of this library may be in the process, as another version of it, or async-profiler, or what was made from
// that (libjavaProfiler). If each led the other's calls to its own hooks, they would call each other without an end.
static bool has_hooks(const struct object *object, const char *path) {
    return within(&ours, object->whole.start) || strstr(path, "asyncProfiler") || strstr(path, "javaProfiler") ||
           (object->soname && !strcmp(object->names + object->soname, "liboffheap.so"));
}

static bool is_followed(const struct object *object, const char *path) {
    return !has_hooks(object, path) && object->base != interpreter &&
           (allocator_is_libc || !within(&allocator, object->whole.start));
}

static int visit_object(struct dl_phdr_info *info, size_t size, void *visit) {
    struct object object;
    (void)size;
    if (read_object(info, &object) && is_followed(&object, info->dlpi_name)) {
        each_entry(&object, *(void (**)(struct object *, const ElfW(Rela) *, const struct got_hook *))visit);
        close_object(&object);
    }
    return 0;
}

static void visit_objects(void (*visit)(struct object *, const ElfW(Rela) *, const struct got_hook *)) {
    cursor = 0;
    dl_iterate_phdr(visit_object, &visit);
}

// Another tool may put its own functions where our hooks are; then nothing is seen of these calls any more.
static void count_taken(void) {
    taken = 0;
    for (size_t i = 0; i < count; i++) {
        uintptr_t value = __atomic_load_n(entries[i].at, __ATOMIC_RELAXED);
        if (!entries[i].hook)
            continue;
        if (value != entries[i].hook && within(&allocator, value))
            looks = 1;   // it has put back what it knows of
        else
            taken += value != entries[i].hook;
    }
}

// No object can go while the loader lists them, so if none has gone, all entries are there.
static int note_changes(struct dl_phdr_info *info, size_t size, void *changed) {
    (void)size;
    *(bool *)changed = info->dlpi_adds != opened || info->dlpi_subs != closed;
    if (!*(bool *)changed && !looks)
        count_taken();
    opened = info->dlpi_adds;
    closed = info->dlpi_subs;
    return 1;
}

static void look(bool first) {
    bool changed = false;
    loader_lock();
    dl_iterate_phdr(note_changes, &changed);
    if (first || changed)
        looks = LOOKS;
    if (looks) {
        looks--;
        rounds++;
        unready = false;
        visit_objects(redirect);
        size_t kept = 0;
        for (size_t i = 0; i < count; i++)
            if (entries[i].round == rounds)
                entries[kept++] = entries[i];
        count = kept;
        if (!unready && looks > 1)
            looks = looks == LOOKS - 1;   // once more: the loader may have bound an entry while we changed it
    }
    loader_unlock();
}

void got_redirect(void) {
    look(true);
}

void got_follow(void) {
    look(false);
}

size_t got_redirected(void) {
    return count;
}

size_t got_taken(void) {
    return taken;
}

size_t got_put_back(size_t *left) {
    loader_lock();
    put_back = stuck = 0;
    visit_objects(restore);
    looks = 0;
    taken = 0;
    if (!stuck)
        count = 0;
    loader_unlock();
    *left = stuck;
    return put_back;
}

static uintptr_t definition;   // of malloc: our own calls are bound to it, and nobody changes our entries

static void note_definition(struct object *object, const ElfW(Rela) *relocation, const struct got_hook *hook) {
    if (ELF64_R_TYPE(relocation->r_info) == JUMP_SLOT && !strcmp(hook->name, "malloc"))
        definition = *(const uintptr_t *)(object->base + relocation->r_offset);
}

static int note_ours(struct dl_phdr_info *info, size_t size, void *first) {
    struct object object;
    (void)size;
    bool read = read_object(info, &object);
    if (*(bool *)first)
        program = object.whole;
    *(bool *)first = false;
    if (!read || !within(&object.whole, (uintptr_t)note_ours))
        return 0;
    ours = object.whole;
    each_entry(&object, note_definition);
    return 1;
}

static int note_allocator(struct dl_phdr_info *info, size_t size, void *unused) {
    struct object object;
    (void)size;
    (void)unused;
    if (!read_object(info, &object) || !within(&object.whole, definition))
        return 0;
    allocator = object.whole;
    allocator_is_libc = within(&allocator, (uintptr_t)getauxval);
    return 1;
}

// Where the process's calls of them lead to the allocator, and not to a program's or library's own.
static void find_own(void) {
    for (size_t i = 0; i < hook_count; i++) {
        void *found = hooks[i].own ? dlsym(RTLD_DEFAULT, hooks[i].name) : NULL;
        if (found && within(&allocator, (uintptr_t)found))
            *hooks[i].own = found;
    }
    dlerror();   // no error of the program's
}

bool got_prepare(const struct got_hook *wanted, size_t wanted_count) {
    bool first = true;
    if (entries)
        return true;
    void *memory = mmap(NULL, MOST * sizeof *entries, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return false;
    hooks = wanted;
    hook_count = wanted_count;
    page_size = (uintptr_t)sysconf(_SC_PAGESIZE);
    interpreter = (uintptr_t)getauxval(AT_BASE);
    loader_lock();
    dl_iterate_phdr(note_ours, &first);
    dl_iterate_phdr(note_allocator, NULL);
    loader_unlock();
    find_own();
    entries = memory;
    return true;
}

bool got_is_ours(uintptr_t address) {
    return within(&ours, address);
}
