// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A process that the agent is attached to: attached LIBRARY [PLUGIN]. A line on stdin is a command, one on stdout its
// answer, "done" if there is nothing more to say. It opens the library itself, as a thread that is held would.
//   attach FILE     offheap_attach with the settings in the file; answers its result
//   snapshot        notes what each entry of each object for these functions holds
//   compare         answers how many hold something else now
//   data            a pointer of the program's own that led to malloc leads to a function of its own
//   take, return    the program's own entry for free leads to another function, as other tools do it; to what it led before
//   leak COUNT SIZE   keeps blocks, each allocated in leak_here, while as many come and go in churn_here
//   churn STEPS     eight threads allocate, reallocate, hand over and end, while children are forked
//   free            all that churn has left
//   kinds           a block from each function, kept
//   own             the same by functions that only some allocators have; half of them end by such functions, too
//   sized           blocks that end by functions that want their size
//   fail            a block, and a realloc of it that fails; then that one is freed
//   errno           answers whether errno is as it was, after many calls
//   open, close     PLUGIN, which keeps a block when it is opened
//   plugin          PLUGIN allocates a block, and keeps it
//   unseen COUNT    frees what was leaked past all entries, and allocates as much again
//   forks, joined   a thread begins to fork children that allocate, open PLUGIN and end; ends, answers how many did not
//   living          answers how many blocks churn has left
//   signals         a handler allocates, whatever it interrupts
//   queue, told     asks to be told of a message in a queue; sends one, and answers how often it was told
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <malloc.h>
#include <mqueue.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define SLOTS 512
#define THREADS 8
#define KEPT 100000
#define ENTRIES 4096
#ifdef __aarch64__
enum { CALL = R_AARCH64_JUMP_SLOT, DATA = R_AARCH64_GLOB_DAT, ABSOLUTE = R_AARCH64_ABS64 };
#else
enum { CALL = R_X86_64_JUMP_SLOT, DATA = R_X86_64_GLOB_DAT, ABSOLUTE = R_X86_64_64 };
#endif

static int steps;
static _Atomic(void *) shared[SLOTS];
static void *kept[KEPT];
static int kept_count;
static struct {
    void **at, *value;
    const char *name;
} noted[ENTRIES];
static int noted_count;

__attribute__((noinline, no_icf)) static void *leak_here(size_t size) {
    void *block = malloc(size);
    atomic_signal_fence(memory_order_seq_cst);   // no tail call
    return block;
}

__attribute__((noinline, no_icf)) static void *churn_here(size_t size) {
    void *block = malloc(size);
    atomic_signal_fence(memory_order_seq_cst);
    return block;
}

static void come_and_go(size_t size) {
    void *volatile block = malloc(size);   // else a compiler leaves both out
    free(block);
}

static void keep(void *block) {
    kept[kept_count++ % KEPT] = block;
}

static void leak(int count, size_t size) {
    for (int i = 0; i < count; i++) {
        keep(leak_here(size));
        for (int other = 0; other < 4; other++)
            free(churn_here(size));
    }
}

static void *serve(void *number) {
    unsigned state = (unsigned)(uintptr_t)number;
    for (int i = 0; i < steps; i++) {
        state = state * 1103515245u + 12345u;
        _Atomic(void *) *slot = &shared[(state >> 8) % SLOTS];
        void *mine = atomic_exchange(slot, NULL), *moved;
        size_t size = 16 + (state >> 16) % 3000;
        if (state >> 12 & 1) {
            free(mine);
            mine = malloc(size);
        } else if ((moved = realloc(mine, size))) {
            mine = moved;
        }
        free(atomic_exchange(slot, mine));   // which another thread may have allocated
    }
    return NULL;
}

static atomic_bool forking;
static atomic_int forked;

static int fork_once(const char *plugin) {
    pid_t child = fork();
    int status = 0;
    if (child == 0) {
        alarm(20);   // a lock that it never gets
        for (int at = 0; at < 100; at++)
            free(atomic_exchange(&shared[at], malloc(100)));
        if (plugin && !dlopen(plugin, RTLD_NOW))
            _exit(3);
        _exit(0);
    }
    waitpid(child, &status, 0);
    return status;
}

static void *fork_on(void *plugin) {
    int wrong = 0;
    for (; forking; forked++) {
        int status = fork_once(plugin);
        if (status)
            fprintf(stderr, "a child ended with %#x\n", (unsigned)status);
        wrong += status != 0;
    }
    return (void *)(uintptr_t)wrong;
}

static int living(void) {
    int count = 0;
    for (int at = 0; at < SLOTS; at++)
        count += shared[at] != NULL;
    return count;
}

static int churn(void) {
    int wrong = 0;
    for (int round = 0; round < 4; round++) {   // so that threads end and others begin
        pthread_t threads[THREADS];
        for (int i = 0; i < THREADS; i++)
            pthread_create(&threads[i], NULL, serve, (void *)(uintptr_t)(i + round * THREADS + 1));
        for (int i = 0; i < 5; i++)
            wrong |= fork_once(NULL);
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
    }
    return wrong;
}

static const char *const names[] = {"malloc",         "free",          "calloc",   "realloc", "reallocarray",
                                    "posix_memalign", "aligned_alloc", "memalign", "valloc",  "pvalloc"};

static void note(struct dl_phdr_info *object, const ElfW(Rela) *table, size_t size, const ElfW(Sym) *symbols, const char *text) {
    for (size_t i = 0; table && i < size / sizeof *table; i++) {
        unsigned type = (unsigned)ELF64_R_TYPE(table[i].r_info);
        const char *name = text + symbols[ELF64_R_SYM(table[i].r_info)].st_name;
        bool wanted = false;
        for (size_t at = 0; at < sizeof names / sizeof *names; at++)
            wanted |= !strcmp(name, names[at]);
        if (!wanted || (type != CALL && type != DATA && type != ABSOLUTE))
            continue;
        void **place = (void **)(object->dlpi_addr + table[i].r_offset);
        noted[noted_count].at = place;
        noted[noted_count].name = name;
        noted[noted_count++].value = *place;
    }
}

static int note_object(struct dl_phdr_info *object, size_t size, void *unused) {
    const ElfW(Dyn) *dynamic = NULL;
    const ElfW(Rela) *data = NULL, *calls = NULL;
    const ElfW(Sym) *symbols = NULL;
    const char *text = NULL;
    size_t data_size = 0, calls_size = 0;
    (void)size;
    (void)unused;
    for (int i = 0; i < object->dlpi_phnum; i++)
        if (object->dlpi_phdr[i].p_type == PT_DYNAMIC)
            dynamic = (const ElfW(Dyn) *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
    for (; dynamic && dynamic->d_tag; dynamic++) {
        uintptr_t value = dynamic->d_un.d_ptr;
        switch (dynamic->d_tag) {
        case DT_SYMTAB: symbols = (void *)value; break;
        case DT_STRTAB: text = (void *)value; break;
        case DT_RELA: data = (void *)value; break;
        case DT_RELASZ: data_size = value; break;
        case DT_JMPREL: calls = (void *)value; break;
        case DT_PLTRELSZ: calls_size = value; break;
        default: break;
        }
    }
    note(object, data, data_size, symbols, text);
    note(object, calls, calls_size, symbols, text);
    return 0;
}

static int changed(void) {
    int count = 0;
    for (int i = 0; i < noted_count; i++)
        count += *noted[i].at != noted[i].value;
    return count;
}

static void free_elsewhere(void *block) {
    ((void (*)(void *))dlsym(RTLD_NEXT, "free"))(block);
}

static int take(bool back) {
    extern char __executable_start, _end;
    int count = 0;
    for (int i = 0; i < noted_count; i++) {
        char *at = (char *)noted[i].at;
        if (at < &__executable_start || at >= &_end || strcmp(noted[i].name, "free"))
            continue;
        *noted[i].at = back ? noted[i].value : (void *)free_elsewhere;
        count++;
    }
    return count;
}

static void *(*volatile by_data)(size_t) = malloc;   // an entry of data, as that of an address that code takes

__attribute__((noinline, no_icf)) static void *allocate_elsewhere(size_t size) {
    return malloc(size);
}

__attribute__((noinline)) static void kinds(void) {
    void *block = NULL;
    void *(*volatile by_address)(size_t) = malloc;
    keep(malloc(1000));
    keep(calloc(10, 100));
    keep(realloc(malloc(10), 1000));
    keep(reallocarray(NULL, 10, 100));
    if (!posix_memalign(&block, 64, 1000))
        keep(block);
    keep(aligned_alloc(64, 1024));
    keep(memalign(64, 1000));
    keep(valloc(1000));
    keep(pvalloc(1000));
    keep(by_data(1000));
    keep(by_address(1000));
    keep(strdup("libc calls malloc, too"));
}

extern void *mallocx(size_t, int) __attribute__((weak));
extern void *rallocx(void *, size_t, int) __attribute__((weak));
extern void dallocx(void *, int) __attribute__((weak));
extern void sdallocx(void *, size_t, int) __attribute__((weak));
extern void *new_one(size_t) __asm__("_Znwm") __attribute__((weak));
extern void *new_array(size_t) __asm__("_Znam") __attribute__((weak));
extern void delete_one(void *) __asm__("_ZdlPv") __attribute__((weak));
extern void delete_sized(void *, size_t) __asm__("_ZdaPvm") __attribute__((weak));

__attribute__((noinline)) static void own(void) {
    if (!mallocx || !new_one)
        return;
    keep(mallocx(1000, 0));
    keep(rallocx(mallocx(10, 0), 1000, 0));
    keep(new_one(1000));
    keep(new_array(1000));
    dallocx(mallocx(1000, 0), 0);
    sdallocx(mallocx(1000, 0), 1000, 0);
    delete_one(new_one(1000));
    delete_sized(new_array(1000), 1000);
}

extern void free_sized(void *, size_t) __attribute__((weak));
extern void free_aligned_sized(void *, size_t, size_t) __attribute__((weak));

__attribute__((noinline)) static void sized(void) {
    if (!free_sized || !free_aligned_sized)
        return;
    free_sized(malloc(1000), 1000);
    free_aligned_sized(malloc(1000), 16, 1000);
}

static void fail(void) {
    void *block = leak_here(5000);
    if (realloc(block, SIZE_MAX / 2))
        abort();
    keep(block);
}

static int errno_is_kept(void) {
    for (int i = 0; i < 10000; i++) {
        errno = 12345;
        come_and_go(100);
        if (errno != 12345)
            return 0;
    }
    return 1;
}

static void unseen(int count) {
    void (*past)(void *) = (void (*)(void *))dlsym(RTLD_NEXT, "free");   // libc's own, by no entry
    for (int i = 0; i < count; i++)
        past(kept[--kept_count]);
    for (int i = 0; i < count; i++)
        keep(churn_here(2000));
}

static atomic_int handled;

static void handle(int number) {
    (void)number;
    come_and_go(500);   // of another size than what it interrupts, so that glibc's own cache for each can bear it
    handled++;
}

static int signals(void) {
    struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
    come_and_go(100);
    come_and_go(500);
    signal(SIGALRM, handle);
    setitimer(ITIMER_REAL, &often, NULL);
    while (handled < 2000)
        come_and_go(100);
    setitimer(ITIMER_REAL, &never, NULL);
    return handled;
}

static mqd_t queue;
static atomic_int told;

static void tell(union sigval unused) {
    (void)unused;
    told++;
}

static bool queue_asked(void) {
    struct sigevent by_thread = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = tell};
    char name[32];
    snprintf(name, sizeof name, "/offheap-%d", (int)getpid());
    queue = mq_open(name, O_RDWR | O_CREAT | O_EXCL, 0600, NULL);
    return queue >= 0 && mq_unlink(name) == 0 && mq_notify(queue, &by_thread) == 0;
}

static int queue_told(void) {
    if (mq_send(queue, "x", 1, 0) < 0)
        return 0;
    for (int i = 0; i < 500 && !told; i++)
        usleep(10000);
    return told;
}

int main(int count, char **words) {
    static char line[4096], text[32768];
    void *library = count > 1 ? dlopen(words[1], RTLD_NOW) : NULL, *plugin = NULL;
    const char *path = count > 2 ? words[2] : NULL;
    pthread_t forker;
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    int (*attach)(const char *) = (int (*)(const char *))dlsym(library, "offheap_attach");
    setvbuf(stdout, NULL, _IONBF, 0);
    setvbuf(stdin, NULL, _IONBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        char word[32] = "", argument[4000] = "";
        int size = 0, answer = -1;
        sscanf(line, "%31s %3999s %d", word, argument, &size);
        if (!strcmp(word, "attach")) {
            FILE *file = fopen(argument, "r");
            text[fread(text, 1, sizeof text - 1, file)] = '\0';
            fclose(file);
            answer = attach(text);
        } else if (!strcmp(word, "snapshot")) {
            noted_count = 0;
            dl_iterate_phdr(note_object, NULL);
            answer = noted_count;
        } else if (!strcmp(word, "compare")) {
            answer = changed();
        } else if (!strcmp(word, "data")) {
            by_data = allocate_elsewhere;
        } else if (!strcmp(word, "take") || !strcmp(word, "return")) {
            answer = take(*word == 'r');
        } else if (!strcmp(word, "leak")) {
            leak(atoi(argument), (size_t)size);
        } else if (!strcmp(word, "churn")) {
            steps = atoi(argument);
            answer = churn();
        } else if (!strcmp(word, "free")) {
            for (int at = 0; at < SLOTS; at++)
                free(atomic_exchange(&shared[at], NULL));
            while (kept_count)
                free(kept[--kept_count]);
        } else if (!strcmp(word, "kinds")) {
            kinds();
        } else if (!strcmp(word, "own")) {
            own();
        } else if (!strcmp(word, "sized")) {
            sized();
        } else if (!strcmp(word, "fail")) {
            fail();
        } else if (!strcmp(word, "errno")) {
            answer = errno_is_kept();
        } else if (!strcmp(word, "open")) {
            plugin = dlopen(path, RTLD_LAZY);
            answer = plugin != NULL;
        } else if (!strcmp(word, "close")) {
            answer = dlclose(plugin);
        } else if (!strcmp(word, "plugin")) {
            ((void (*)(void))dlsym(plugin, "plugin_leak"))();
        } else if (!strcmp(word, "unseen")) {
            unseen(atoi(argument));
        } else if (!strcmp(word, "forks")) {
            forking = true;
            pthread_create(&forker, NULL, fork_on, words[2]);
        } else if (!strcmp(word, "joined")) {
            void *wrong;
            forking = false;
            pthread_join(forker, &wrong);
            answer = forked ? (int)(uintptr_t)wrong : 9999;
        } else if (!strcmp(word, "living")) {
            answer = living();
        } else if (!strcmp(word, "queue")) {
            answer = queue_asked();
        } else if (!strcmp(word, "told")) {
            answer = queue_told();
        } else if (!strcmp(word, "signals")) {
            answer = signals();
        }
        if (answer < 0)
            puts("done");
        else
            printf("%d\n", answer);
    }
    return 0;
}
