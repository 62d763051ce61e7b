// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A service whose blocks are lost, or held in every way that the agent should tell apart: holders [churn]. It says "ready",
// and waits for a line; "churn": threads, maps and mapped memory come and go until then. "attach LIBRARY SETTINGS" opens the
// agent, which then stands in for jemalloc. "only CASE SECONDS": one of the ways alone, after so long, beside a table of what
// is kept.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <functional>
#include <list>
#include <malloc.h>
#include <map>
#include <memory>
#include <pthread.h>
#include <set>
#include <string>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <thread>
#include <ucontext.h>
#include <unistd.h>
#include <unordered_map>
#include <vector>

#define CASE __attribute__((noinline, used)) static void

static const int COUNT = 3000, MANY = 100000;

// All of it is written: else what a block held before would hold something by chance.
static char *block(size_t size) {
    char *made = static_cast<char *>(malloc(size));
    memset(made, 1, malloc_usable_size(made));
    return made;
}

struct Node {
    Node *next, *other;
    char body[200];
};

struct Session {
    char name[120];
    char *blob;
};

struct Shape {
    virtual ~Shape() = default;
    char body[150] = {};
};

struct Circle : Shape {
    double radius = 1;
};

struct Ring {
    std::shared_ptr<Ring> other;
    char body[200] = {};
};

struct Link {   // it is in the middle of what it links
    Link *next;
};

struct Linked {
    char head[100];
    Link link;
    char tail[50];
};

std::unordered_map<int, Session *> session_cache;
std::map<int, char *> ordered;
std::set<char *> chosen;
std::list<char *> queue;
std::vector<Shape *> shapes;
std::vector<std::function<int()>> callbacks;
Node *audit_head, *tree_root;
Link *intrusive;
char *current, *halves[COUNT], **arena, *table[COUNT], *array[COUNT], *large[MANY];
uintptr_t marked[COUNT];
static thread_local std::vector<char *> *mine;

CASE lost_by_overwrite() { for (int i = 0; i < COUNT; i++) current = block(300); current = nullptr; }

CASE lost_by_return() { for (int i = 0; i < COUNT; i++) if (!block(301)) return; }

__attribute__((noinline)) static void fail(const char *made) {
    if (made)
        throw made[0];
}

CASE lost_by_exception() {
    for (int i = 0; i < COUNT; i++) {
        try {
            char *made = block(313);
            fail(made);
            free(made);
        } catch (char) {
        }
    }
}

CASE lost_with_its_holder() {   // what is held by what is lost
    for (int i = 0; i < COUNT; i++) {
        Node *node = reinterpret_cast<Node *>(block(sizeof(Node)));
        node->next = reinterpret_cast<Node *>(block(302));
    }
}

CASE lost_in_a_cycle() {
    for (int i = 0; i < COUNT; i++) {
        auto one = std::make_shared<Ring>(), two = std::make_shared<Ring>();
        one->other = two;
        two->other = one;
    }
}

CASE lost_but_in_freed_memory() {   // each is pointed to by a block that was freed
    std::vector<Node *> holders;
    for (int i = 0; i < COUNT; i++) {
        Node *node = reinterpret_cast<Node *>(block(sizeof(Node)));
        node->next = node->other = reinterpret_cast<Node *>(block(303));
        memcpy(node->body, &node->next, sizeof node->next);
        holders.push_back(node);
    }
    for (Node *node : holders)
        free(node);
}

CASE half_lost() {
    for (int i = 0; i < COUNT; i++) {
        char *made = block(304);
        halves[i] = i % 2 ? made : nullptr;
    }
}

CASE kept_by_unordered_map() {
    for (int i = 0; i < COUNT; i++) {
        auto *session = new Session();
        session->blob = block(500);
        session_cache[i] = session;
    }
}

CASE kept_by_map() { for (int i = 0; i < COUNT; i++) ordered[i] = block(305); }

CASE kept_by_set() { for (int i = 0; i < COUNT; i++) chosen.insert(block(306)); }

CASE kept_by_list() { for (int i = 0; i < COUNT; i++) queue.push_back(block(307)); }

CASE kept_by_vector() { for (int i = 0; i < COUNT; i++) shapes.push_back(new Circle); }

CASE kept_by_its_own_list() {
    for (int i = 0; i < COUNT; i++) {
        Node *node = reinterpret_cast<Node *>(block(sizeof(Node)));
        node->next = audit_head;
        node->other = nullptr;
        audit_head = node;
    }
}

CASE kept_by_its_own_tree() {
    for (int i = 0; i < COUNT; i++) {
        Node *node = reinterpret_cast<Node *>(block(sizeof(Node))), **at = &tree_root;
        node->next = node->other = nullptr;
        for (unsigned bits = static_cast<unsigned>(i) * 2654435761u; *at; bits <<= 1)
            at = bits >> 31 ? &(*at)->next : &(*at)->other;
        *at = node;
    }
}

CASE kept_by_an_intrusive_list() {   // all pointers lead into the blocks
    for (int i = 0; i < COUNT; i++) {
        Linked *linked = reinterpret_cast<Linked *>(block(sizeof(Linked)));
        linked->link.next = intrusive;
        intrusive = &linked->link;
    }
}

CASE kept_by_an_array() { for (char *&entry : array) entry = block(314); }

CASE kept_by_a_large_array() { for (char *&entry : large) entry = block(160); }

CASE kept_by_a_static() {
    static std::vector<char *> cache;
    for (int i = 0; i < COUNT; i++)
        cache.push_back(block(308));
}

CASE kept_by_a_closure() {
    for (int i = 0; i < COUNT; i++) {
        char *held = block(309);
        long more = i, still = 2 * i;
        callbacks.emplace_back([held, more, still] { return held[0] + static_cast<int>(more + still); });
    }
}

CASE kept_by_an_arena() {   // in memory that is no block of the allocator
    arena = static_cast<char **>(mmap(nullptr, COUNT * sizeof *arena, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (int i = 0; i < COUNT; i++)
        arena[i] = block(310);
}

CASE kept_by_a_thread_local() {
    mine = new std::vector<char *>;
    for (int i = 0; i < COUNT; i++)
        mine->push_back(block(311));
}

CASE kept_by_a_stack(std::vector<char *> &vector) { for (int i = 0; i < COUNT; i++) vector.push_back(block(312)); }

CASE kept_by_what_is_read_only() {   // sealed once it was filled
    size_t size = COUNT * sizeof(char *);
    void *sealed = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < COUNT; i++)
        static_cast<char **>(sealed)[i] = block(315);
    mprotect(sealed, size, PROT_READ);
}

CASE kept_by_marked_pointers() {   // in the bits that no address has, as boost::lockfree counts there
    for (uintptr_t i = 0; i < COUNT; i++)
        marked[i] = reinterpret_cast<uintptr_t>(block(316)) | (i + 1) << 48;
}

CASE kept_by_an_epoll() {   // as connections are
    int waiting = epoll_create1(0);
    for (int i = 0; i < 300; i++) {
        epoll_event event{};
        event.data.ptr = block(4000);
        epoll_ctl(waiting, EPOLL_CTL_ADD, eventfd(0, 0), &event);
    }
}

CASE kept_below_a_fiber(char **memory) { for (int i = 0; i < COUNT; i++) memory[i] = block(317); }

static std::atomic<int> ready{0};
static std::atomic<bool> ending{false};

static void wait_for_the_end() {
    ready++;
    while (!ending)
        usleep(1000);
}

static void worker() {
    std::vector<char *> own;
    pthread_setname_np(pthread_self(), "worker-3");
    kept_by_a_stack(own);
    wait_for_the_end();
    printf("%zu\n", own.size());   // it is needed until here
}

static void local_worker() {
    pthread_setname_np(pthread_self(), "local-1");
    kept_by_a_thread_local();
    wait_for_the_end();
}

static void fiber_worker() {   // what it runs on is a part of a larger mapping
    static const size_t size = 1 << 20;
    static ucontext_t before, fiber;
    void *memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    kept_below_a_fiber(static_cast<char **>(memory));
    madvise(static_cast<char *>(memory) + size / 2, 4096, 102);   // MADV_GUARD_INSTALL, from Linux 6.13 on
    getcontext(&fiber);
    fiber.uc_stack.ss_sp = static_cast<char *>(memory) + size / 2;
    fiber.uc_stack.ss_size = size / 2;
    fiber.uc_link = &before;
    makecontext(&fiber, wait_for_the_end, 0);
    swapcontext(&before, &fiber);
}

static void churn() {   // until the end
    std::map<int, std::vector<int>> moving;
    for (unsigned i = 0; !ending; i++) {
        moving[static_cast<int>(i % 500)].assign(i % 3000, 1);
        void *area = mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(area, 1, 1 << 16);
        munmap(area, 1 << 20);
        if (i % 50 == 0)
            std::thread([] { free(block(5000)); }).join();
    }
}

static void clear_stack() {   // of what it held before
    volatile char deep[32768];
    memset(const_cast<char *>(deep), 0, sizeof deep);
}

static const struct {
    const char *name;
    void (*run)();
} cases[] = {
    {"lost_by_overwrite", lost_by_overwrite},
    {"lost_by_return", lost_by_return},
    {"lost_by_exception", lost_by_exception},
    {"lost_with_its_holder", lost_with_its_holder},
    {"lost_in_a_cycle", lost_in_a_cycle},
    {"lost_but_in_freed_memory", lost_but_in_freed_memory},
    {"half_lost", half_lost},
    {"kept_by_unordered_map", kept_by_unordered_map},
    {"kept_by_map", kept_by_map},
    {"kept_by_set", kept_by_set},
    {"kept_by_list", kept_by_list},
    {"kept_by_vector", kept_by_vector},
    {"kept_by_its_own_list", kept_by_its_own_list},
    {"kept_by_its_own_tree", kept_by_its_own_tree},
    {"kept_by_an_intrusive_list", kept_by_an_intrusive_list},
    {"kept_by_an_array", kept_by_an_array},
    {"kept_by_a_large_array", kept_by_a_large_array},
    {"kept_by_a_static", kept_by_a_static},
    {"kept_by_a_closure", kept_by_a_closure},
    {"kept_by_an_arena", kept_by_an_arena},
    {"kept_by_what_is_read_only", kept_by_what_is_read_only},
    {"kept_by_marked_pointers", kept_by_marked_pointers},
    {"kept_by_an_epoll", kept_by_an_epoll},
};

__attribute__((noinline)) static void remember() { for (char *&entry : table) entry = block(400); }

static int only(const char *name, int seconds) {
    static const std::map<std::string, void (*)()> threads = {
        {"kept_by_a_stack", worker}, {"kept_by_a_thread_local", local_worker}, {"kept_below_a_fiber", fiber_worker}};
    sleep(static_cast<unsigned>(seconds));
    remember();
    for (auto &one : cases)
        if (one.name == std::string(name))
            one.run();
    clear_stack();
    if (auto found = threads.find(name); found != threads.end())
        std::thread(found->second).detach();
    for (;;)
        pause();
}

int main(int count, char **words) {
    if (count == 4 && !strcmp(words[1], "only"))
        return only(words[2], atoi(words[3]));
    if (count == 4) {
        void *library = dlopen(words[2], RTLD_NOW);
        auto attach = reinterpret_cast<int (*)(const char *)>(library ? dlsym(library, "offheap_attach") : nullptr);
        if (!attach || attach(words[3]))
            return 2;
    }
    // A buffer on the heap would be held, with whatever lay there before.
    static char buffer[BUFSIZ];
    setvbuf(stdout, buffer, _IOLBF, sizeof buffer);
    setvbuf(stdin, nullptr, _IONBF, 0);
    getchar();   // once sampling is switched on
    for (auto &one : cases)
        one.run();
    std::vector<std::thread> threads;
    threads.emplace_back(worker);
    threads.emplace_back(local_worker);
    threads.emplace_back(fiber_worker);
    for (int i = 0; count == 2 && i < 3; i++)
        threads.emplace_back(churn);
    while (ready < 3)
        usleep(1000);
    clear_stack();
    puts("ready");
    getchar();
    ending = true;
    for (auto &thread : threads)
        thread.join();
    return 0;
}
