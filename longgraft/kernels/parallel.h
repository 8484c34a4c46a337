// A loop over several threads that never waits for a thread that the system has not scheduled.
//
// A loop's end in OpenMP waits until every thread has arrived, also those that had nothing to do. On a machine that is
// busy otherwise such a thread may get a core only after milliseconds, and a pass has two hundred loops. Here a loop ends
// when its tasks are done: the calling thread takes tasks until none is left, and the others help where they can.

#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

namespace parallel {

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

class Pool {
public:
    // One for the process, never destroyed: its threads may outlive static objects.
    static Pool& shared() {
        static Pool* const pool = new Pool;
        return *pool;
    }

    // Calls task(context, i) for i in [0, tasks). False where another thread's loop runs here, or this process is a fork.
    // std::bad_alloc where a task threw anything.
    bool run(void (*task)(const void*, int64_t), const void* context, uint32_t tasks, int threads) {
        const std::unique_lock<std::mutex> mine(one_loop_, std::try_to_lock);
        if (!mine) return false;
        const bool ours = getpid() == process_;
        if (ours) {
            try {
                for (; workers_ < threads - 1; ++workers_) std::thread(&Pool::work, this, workers_).detach();
            } catch (const std::system_error&) {}       // the system gives no more threads: those that there are do it
            task_ = task;
            context_ = context;
            helpers_.store(threads - 1, std::memory_order_relaxed);
            done_.store(0, std::memory_order_relaxed);
            failed_.store(false, std::memory_order_relaxed);
            left_.store(((left_.load() >> 32) + 1) << 32 | tasks);
            if (asleep_.load()) {
                std::lock_guard<std::mutex> lock(sleep_);
                wake_.notify_all();
            }
            take();
            for (int spins = 0; done_.load(std::memory_order_acquire) != tasks; ++spins) {
                if (spins < SPINS) pause();
                else std::this_thread::yield();     // a helper lost its core in the middle of a task
            }
        }
        if (ours && failed_.load()) throw std::bad_alloc();
        return ours;
    }

private:
    static constexpr int SPINS = 4000;      // some 50 microseconds: loops of a pass follow one another faster

    // Tasks are claimed by one number, in whose upper half each loop is counted: a late thread cannot take a task of a
    // loop that has ended, and a claimed task keeps its loop from ending.
    void take() {
        uint64_t left = left_.load(std::memory_order_acquire);
        while (static_cast<uint32_t>(left))
            if (left_.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel)) {
                try {
                    task_(context_, static_cast<uint32_t>(left) - 1);
                } catch (...) {
                    failed_.store(true);
                }
                done_.fetch_add(1, std::memory_order_release);
                left = left_.load(std::memory_order_acquire);
            }
    }

    void work(int index) {
        for (int spins = 0;;) {
            if (index < helpers_.load(std::memory_order_relaxed) && static_cast<uint32_t>(left_.load())) {
                take();
                spins = 0;
            } else if (++spins < SPINS) {
                pause();
            } else {
                std::unique_lock<std::mutex> lock(sleep_);
                asleep_.fetch_add(1);
                wake_.wait(lock, [&] { return index < helpers_.load() && static_cast<uint32_t>(left_.load()); });
                asleep_.fetch_sub(1);
                spins = 0;
            }
        }
    }

    const pid_t process_ = getpid();
    std::mutex one_loop_, sleep_;
    std::condition_variable wake_;
    std::atomic<uint64_t> left_{0};
    std::atomic<uint32_t> done_{0};
    std::atomic<int> helpers_{0}, asleep_{0};
    std::atomic<bool> failed_{false};
    void (*task_)(const void*, int64_t) = nullptr;
    const void* context_ = nullptr;
    int workers_ = 0;
};

// Calls body(i) for i in [0, count), in any order, on up to `threads` threads.
template <class Body> void loop(int64_t count, int threads, const Body& body) {
    constexpr int64_t PARTS = 8;            // of a thread's share: what one waits for at the end, at most
    const int64_t parts = threads > 1 ? std::min(count, PARTS * threads) : 1;
    struct Context {
        const Body& body;
        int64_t count, parts;
    } const context{body, count, parts};
    const auto part = [](const void* given, int64_t index) {
        const Context& own = *static_cast<const Context*>(given);
        for (int64_t i = index * own.count / own.parts; i < (index + 1) * own.count / own.parts; ++i) own.body(i);
    };
    if (parts < 2 || !Pool::shared().run(part, &context, static_cast<uint32_t>(parts), threads))
        for (int64_t index = 0; index < parts; ++index) part(&context, index);
}

}  // namespace parallel
