// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// What services do that could go wrong with an agent in them: workload MODE [SECONDS]. Ends with 0 when all went
// well, and says on stdout what it saw.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define THREADS 200

extern char **environ;
static volatile double until;
static atomic_ulong rounds;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void nap(long milliseconds) {
    nanosleep(&(struct timespec){milliseconds / 1000, milliseconds % 1000 * 1000000}, NULL);
}

__attribute__((noinline)) void *leak_here(size_t size) {
    void *block = malloc(size);
    if (block)
        memset(block, 1, size);
    return block;
}

__attribute__((noinline)) static void *allocate(unsigned depth, size_t size) {
    void *block = depth ? allocate(depth - 1, size) : leak_here(size);
    atomic_signal_fence(memory_order_seq_cst);   // no tail call
    return block;
}

static int leak(void) {
    while (now() < until) {
        leak_here(2048);
        nap(1);
    }
    return 0;
}

static void *allocate_and_exit(void *argument) {
    unsigned seed = (unsigned)(size_t)argument;
    void *blocks[64] = {NULL};
    for (int i = 0; i < 500; i++) {
        unsigned at = (unsigned)rand_r(&seed) % 64;
        free(blocks[at]);
        blocks[at] = allocate((unsigned)rand_r(&seed) % 40, (size_t)(rand_r(&seed) % 20000));
    }
    for (int i = 0; i < 64; i++)
        free(blocks[i]);
    atomic_fetch_add(&rounds, 1);
    return NULL;
}

// Threads come and go, 200 at a time.
static int threads(void) {
    pthread_t running[THREADS];
    unsigned long seed = 1;
    while (now() < until) {
        int count = 0;
        for (; count < THREADS; count++)
            if (pthread_create(&running[count], NULL, allocate_and_exit, (void *)seed++))
                break;
        for (int i = 0; i < count; i++)
            pthread_join(running[i], NULL);
    }
    printf("threads %lu\n", atomic_load(&rounds));
    return 0;
}

static void *allocate_on(void *argument) {
    while (now() < until)
        allocate_and_exit(argument);
    return NULL;
}

static void check_child(pid_t child, const char *what) {
    int status;
    for (int waited = 0; waitpid(child, &status, WNOHANG) == 0; waited++) {
        if (waited > 20000) {
            printf("%s hangs\n", what);
            kill(child, SIGKILL);
            exit(1);
        }
        nap(1);
    }
    if (status) {
        printf("%s ended with %x\n", what, (unsigned)status);
        exit(1);
    }
}

// One thread forks while others allocate; the children allocate too, with threads of their own. Some exec.
static int forks(void) {
    pthread_t running[4], one;
    volatile unsigned long count = 0;   // lives through vfork
    for (size_t i = 0; i < 4; i++)
        pthread_create(&running[i], NULL, allocate_on, (void *)(i + 1));
    while (now() < until) {
        pid_t child = count % 8 == 1 ? vfork() : fork();
        if (child == 0) {
            if (count % 4 == 1) {
                execl("/bin/true", "true", (char *)NULL);
                _exit(9);
            }
            alarm(15);
            allocate_and_exit((void *)7);
            if (!pthread_create(&one, NULL, allocate_and_exit, (void *)8))
                pthread_join(one, NULL);
            _exit(0);
        }
        check_child(child, "a forked child");
        if (count++ % 8 == 0) {
            char *arguments[] = {"true", NULL};
            if (!posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ))
                check_child(child, "a spawned child");
        }
    }
    for (int i = 0; i < 4; i++)
        pthread_join(running[i], NULL);
    printf("forks %lu\n", count);
    return count == 0;
}

static int become_daemon(void) {
    if (daemon(0, 0))
        return 1;
    return leak();
}

// Starts itself in every way there is; all of them leak until the end.
static int family(const char *self) {
    char *arguments[] = {"workload", "leak", "20", NULL};
    pid_t children[4];
    until = now() + 20;
    if (!(children[0] = fork()))
        return leak();
    if (!(children[1] = fork()))
        execv(self, arguments);
    if (!(children[2] = vfork())) {
        execv(self, arguments);
        _exit(9);
    }
    posix_spawn(&children[3], self, NULL, NULL, arguments, environ);
    for (int i = 0; i < 4; i++)
        printf("%d ", (int)children[i]);
    printf("\n");
    fflush(stdout);
    return leak();
}

// Closes every descriptor again and again and opens its own instead; they must stay what they are.
static int closer(void) {
    unsigned long stolen = 0;
    while (now() < until) {
        for (int fd = 3; fd < 1024; fd++)
            close(fd);
        struct stat before[200], after;
        int files[200], pair[2];
        for (int i = 0; i < 200; i++) {
            files[i] = i % 2 ? open("/dev/zero", O_RDONLY) : memfd_create("own", 0);
            fstat(files[i], &before[i]);
        }
        // Where the agent's high descriptors were, something of ours.
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0)
            for (int fd = 900; fd < 1020; fd++)
                dup2(pair[fd % 2], fd);
        leak_here(4096);
        nap(20);
        char byte;
        if (recv(pair[0], &byte, 1, MSG_DONTWAIT) >= 0 || recv(pair[1], &byte, 1, MSG_DONTWAIT) >= 0)
            stolen++;
        for (int i = 0; i < 200; i++)
            if (fstat(files[i], &after) || after.st_ino != before[i].st_ino || (i % 2 == 0 && after.st_size))
                stolen++;
    }
    printf("stolen %lu\n", stolen);
    return stolen != 0;
}

// pthread_getattr_np allocates while it holds the thread's lock.
static void *ask_attributes(void *argument) {
    while (now() < until) {
        pthread_attr_t attributes;
        if (pthread_getattr_np(pthread_self(), &attributes) == 0)
            pthread_attr_destroy(&attributes);
        atomic_fetch_add(&rounds, 1);
    }
    return argument;
}

static int attributes(void) {
    pthread_t running[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&running[i], NULL, ask_attributes, NULL);
    ask_attributes(NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(running[i], NULL);
    printf("attributes %lu\n", atomic_load(&rounds));
    return 0;
}

static void on_signal(int number) {
    (void)number;
    free(allocate(10, 100000));   // not allowed in general; in this program nothing else runs
    atomic_fetch_add(&rounds, 1);
}

// musl has none of them; there, nobody asks for "stacks".
#pragma weak getcontext
#pragma weak makecontext
#pragma weak swapcontext
static ucontext_t caller, fiber;

static void in_fiber(void) {
    for (;;) {
        free(allocate(10, 100000));
        swapcontext(&fiber, &caller);
    }
}

// Allocates on other stacks than the thread's: a signal's and a fiber's, the latter with and without a guard.
static int stacks(void) {
    stack_t other = {.ss_sp = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), .ss_size = 65536};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    sigaltstack(&other, NULL);
    sigaction(SIGUSR1, &action, NULL);
    char *space = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (volatile int guarded = 0; guarded < 2; guarded++) {
        if (guarded)
            mprotect(space + 65536, 4096, PROT_NONE);
        getcontext(&fiber);
        fiber.uc_stack = (stack_t){.ss_sp = space, .ss_size = 65536};
        fiber.uc_link = &caller;
        makecontext(&fiber, in_fiber, 0);
        double middle = now() + (until - now()) / 2;
        while (now() < until && (guarded || now() < middle)) {
            raise(SIGUSR1);
            swapcontext(&caller, &fiber);
            free(allocate(10, 100000));
        }
    }
    printf("stacks %lu\n", atomic_load(&rounds));
    return 0;
}

// Becomes another program in the same process, as a wrapper does: workload wrap PROGRAM ARGUMENT...
static int wrap(char **arguments) {
    leak_here(4096);
    execv(arguments[0], arguments);
    return 1;
}

// The same under a filter of system calls that allows everything but unshare, which would end the process.
static int filtered(char **arguments) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_unshare, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        return 1;
    return wrap(arguments);
}

static void finish(int number) {
    (void)number;
    until = 0;
}

static void *keep_some(void *argument) {
    static void *volatile kept[256];
    for (unsigned i = 0; i < 256; i++) {
        free(kept[i]);
        kept[i] = allocate(i % 16, 4096);
    }
    return argument;
}

// Starts a thread, forks, and frees and allocates from many stacks, in each round, and says so with a dot.
static int go_on(void) {
    while (now() < until) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, keep_some, NULL) || pthread_join(thread, NULL))
            return 1;
        pid_t child = fork();
        if (!child)
            _exit(0);
        if (waitpid(child, NULL, 0) != child || write(1, ".", 1) != 1)
            return 1;
        nap(10);
    }
    return 0;
}

int main(int count, char **arguments) {
    signal(SIGTERM, finish);
    const char *mode = count > 1 ? arguments[1] : "";
    until = now() + (count > 2 ? atof(arguments[2]) : 1);
    static const struct {
        const char *name;
        int (*run)(void);
    } modes[] = {{"leak", leak},     {"threads", threads}, {"forks", forks},  {"daemon", become_daemon},
                 {"closer", closer}, {"attributes", attributes}, {"stacks", stacks}, {"rounds", go_on}};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (!strcmp(mode, modes[i].name))
            return modes[i].run();
    if (!strcmp(mode, "family"))
        return family(arguments[0]);
    if (!strcmp(mode, "wrap") && count > 2)
        return wrap(arguments + 2);
    if (!strcmp(mode, "filtered") && count > 2)
        return filtered(arguments + 2);
    fprintf(stderr, "no mode '%s'\n", mode);
    return 2;
}
