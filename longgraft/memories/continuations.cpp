// What follows a context, as a distribution: `continuations.py` says what this is.  tests/toys/continuations.py, in
// Python, gives the same numbers.

#include <new>
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

// The first two lines are those of continuations.py.  The other numbers were chosen by hand; others hardly differ
// (docs/choices.md, the text as a distribution).
constexpr int ORDERS[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32};
constexpr int COUNT = 10, FAR = 32, LEVELS = 4, KEPT = 24;
// Rates are smoothed twice: the rate of a bin by the rate of its order, and that by a prior. The priors, by order: the
// probability that the next token is among the continuations of the longest context that was seen; then the same for each
// further (shorter) context, if the next token was in none of the longer ones.
constexpr double PRIOR[] = {0.25, 0.35, 0.4, 0.45, 0.55, 0.65, 0.75, 0.85, 0.92, 0.95}, OTHER = 0.3;
constexpr double OVERALL = 2.0;         // weight of these priors in the rate of an order, in trials
constexpr double STRENGTH = 12.0;       // weight of an order's rate in the rate of a bin, in trials
constexpr double FADE = 0.998;          // decay of a rate's hits and trials, each time that this rate is scored
constexpr double CARRIED = 8.0;         // most trials that each rate keeps from the prompt when the answer begins
constexpr double REPEATS = 2.0;         // first hits and expected hits of an answer, whose ratio thus begins at 1
constexpr double REPEATS_FADE = 0.98;   // decay of these hits and expected hits, per scored context
constexpr double NEGLIGIBLE = 0.005;    // remaining share below which shorter contexts are ignored
constexpr int RUNS = 10;                // bins for the number of tokens in a row that were predicted: 0, 1, 2 to 3, ...
constexpr int BINS = COUNT * 5 * 4 * 3 * RUNS;
// Places after the bins: rates of orders as first level, as other levels, and of passages; then passages by both lengths.
constexpr int PASSAGES = BINS + 2 * COUNT, OVERALLS = BINS + 3 * COUNT, PLACES = OVERALLS + COUNT * (COUNT + 1);
constexpr uint64_t BASE = 0x9E3779B97F4A7C15ull, MIXED = 0xD6E8FEB86659FD93ull;    // odd, at random

struct Seen { int32_t token; uint32_t count; };

// A context's continuations, the newest last: pool[at, at + size).
struct Context {
    uint64_t key;       // 0: free
    uint32_t at;
    uint16_t size, room;        // room: a power of two
};

// Polynomial hashes of the text up to each of its last ends, the newest first: a context's is what two of them differ by.
struct Ends {
    uint64_t hash[FAR + 1];
    int32_t length;             // tokens that a context can have

    void add(int32_t token) {
        std::memmove(hash + 1, hash, FAR * sizeof hash[0]);
        hash[0] = hash[1] * BASE + static_cast<uint32_t>(token + 2);
        length = std::min(length + 1, FAR);
    }
};

struct Powers {
    uint64_t of[FAR + 1];
    Powers() { of[0] = 1; for (int n = 1; n <= FAR; ++n) of[n] = of[n - 1] * BASE; }
};
const Powers POWERS;

struct Level {
    int bin, order, begin, end;         // its continuations: found[begin, end)
    uint32_t total;                     // of their counts
    bool first;

    int overall() const { return BINS + order + (first ? 0 : COUNT); }
};

struct Child { int32_t token; double probability; bool newest; };

uint64_t key_of(const Ends& ends, int i) {
    const int n = ORDERS[i];
    uint64_t key = ends.hash[0] - ends.hash[n] * POWERS.of[n] + static_cast<uint64_t>(n) * MIXED;
    key = (key ^ key >> 32) * MIXED;
    return (key ^ key >> 29) | 1;
}

// How often each token followed a context.
struct Counts {
    std::vector<Context> table = std::vector<Context>(1 << 10);
    size_t used = 0;
    std::vector<Seen> pool;
    std::vector<uint32_t> idle[6];      // free places of 1, 2, 4, 8, 16, 32 continuations

    Context* find(uint64_t key) {
        for (size_t at = key >> 8 & (table.size() - 1);; at = (at + 1) & (table.size() - 1))
            if (table[at].key == key || !table[at].key) return &table[at];
    }

    uint32_t place(int log) {
        if (!idle[log].empty()) {
            const uint32_t at = idle[log].back();
            idle[log].pop_back();
            return at;
        }
        pool.resize(pool.size() + (1u << log));
        return static_cast<uint32_t>(pool.size() - (1u << log));
    }

    void count(uint64_t key, int32_t token) {
        Context* c = find(key);
        if (!c->key) {
            if (2 * ++used > table.size()) {
                std::vector<Context> old(table.size() * 2);
                old.swap(table);
                for (const Context& one : old)
                    if (one.key) *find(one.key) = one;
                c = find(key);
            }
            *c = {key, place(0), 0, 0};
        }
        Seen* seen = pool.data() + c->at;
        Seen own{token, 1};
        int at = 0;
        while (at < c->size && seen[at].token != token) ++at;
        if (at < c->size) own.count += seen[at].count;
        else if (c->size == KEPT) at = 0;       // the oldest is forgotten
        else {
            if (c->size == 1 << c->room) {
                const uint32_t grown = place(c->room + 1);
                std::copy_n(pool.data() + c->at, c->size, pool.data() + grown);
                idle[c->room].push_back(c->at);
                c->at = grown;
                ++c->room;
                seen = pool.data() + grown;
            }
            ++c->size;
        }
        for (; at + 1 < c->size; ++at) seen[at] = seen[at + 1];
        seen[at] = own;
    }

    // A token behind this end of a text, which moves on.
    void count(Ends& end, int32_t token) {
        if (token < 0) {
            end = {};
            return;
        }
        for (int i = 0; i < COUNT && ORDERS[i] <= end.length; ++i) count(key_of(end, i), token);
        end.add(token);
    }
};

struct Passage { int order; const Context* context; int bin, overall; };     // order: by index; -1: none

struct Model {
    Counts own, passages;
    std::vector<uint32_t> stamps;       // by token: the lookup that last had it
    uint32_t stamp = 0;
    std::vector<double> hits = std::vector<double>(PLACES), trials = hits;
    bool answering = false;
    double had = 1.0, expected = 1.0;
    Ends ends{};
    int64_t run = 0;
    std::vector<Seen> found;
    std::vector<Level> levels;

    // The passages' longest context, where it is longer than the text's own, of this index.
    Passage passage(const Ends& of, int longest) {
        if (passages.used)
            for (int i = COUNT - 1; i > longest; --i) {
                if (of.length < ORDERS[i]) continue;
                const Context* c = passages.find(key_of(of, i));
                if (c->key) return {i, c, OVERALLS + i * (COUNT + 1) + longest + 1, PASSAGES + i};
            }
        return {-1, nullptr, 0, 0};
    }

    bool unused(int32_t token) {
        const size_t id = static_cast<size_t>(token);
        if (id >= stamps.size()) stamps.resize(id + id / 2 + 1024);
        return stamps[id] != stamp;
    }

    // Fills `levels`.  most: the longest order that can match -> the longest one that does, by index, or -1.
    int contexts(const Ends& of, int64_t ran, int most) {
        levels.clear();
        found.clear();
        ++stamp;
        int last = 0, longest = -1;
        for (int i = most; i >= 0 && levels.size() < LEVELS; --i) {
            if (of.length < ORDERS[i]) continue;
            const Context* c = own.find(key_of(of, i));
            if (!c->key) continue;
            longest = std::max(longest, i);
            if (c->size == last) continue;
            last = c->size;
            const int begin = static_cast<int>(found.size());
            uint32_t total = 0;
            for (int s = 0; s < c->size; ++s) {
                const Seen one = own.pool[c->at + s];
                if (!unused(one.token)) continue;
                found.push_back(one);
                total += one.count;
            }
            const int end = static_cast<int>(found.size()), fresh = end - begin, level = static_cast<int>(levels.size());
            if (!fresh) continue;
            for (int s = begin; s < end; ++s) stamps[found[s].token] = stamp;
            int bits = 0, ran_bits = 0;
            while (total >> bits) ++bits;
            while (ran >> ran_bits) ++ran_bits;
            const int bin = ((((level ? std::min(i, 6) : i) * 5 + std::min(fresh, 4)) * 4 + std::min(bits, 3)) * 3
                + std::min(level, 2)) * RUNS + (level ? 0 : std::min(ran_bits, RUNS - 1));
            levels.push_back({bin, i, begin, end, total, !level});
        }
        return longest;
    }

    double learnt(int bin, int overall, double prior) const {
        const double of_order = (hits[overall] + OVERALL * prior) / (trials[overall] + OVERALL);
        return (hits[bin] + STRENGTH * of_order) / (trials[bin] + STRENGTH);
    }

    double rate(const Level& level) const {
        const double rate = learnt(level.bin, level.overall(), level.first ? PRIOR[level.order] : OTHER);
        return rate * had / (rate * had + (1.0 - rate) * expected);
    }

    // longest: the text's own longest context, by index; reach: tokens of the longest one of all
    void after(const Ends& of, int64_t ran, int most, std::vector<Child>& out, int& longest, int& reach) {
        out.clear();
        longest = contexts(of, ran, most);
        double rest = 1.0;
        const Passage known = passage(of, longest);
        if (known.context) {
            const Seen* seen = passages.pool.data() + known.context->at;
            const int size = known.context->size;
            uint32_t total = 0;
            for (int s = 0; s < size; ++s) total += seen[s].count;
            const double share = learnt(known.bin, known.overall, PRIOR[known.order]), each = share / (total + 1.0);
            for (int s = 0; s < size; ++s)
                out.push_back({seen[s].token, each * (seen[s].count + (s == size - 1 ? 1.0 : 0.0)), false});
            rest -= share;
        }
        const size_t before = out.size();
        for (const Level& level : levels) {
            const double own = rate(level), each = rest * own / (level.total + 1.0);
            for (int s = level.begin; s < level.end; ++s) {
                const bool newest = s == level.end - 1;
                const Child child{found[s].token, each * (found[s].count + (newest ? 1.0 : 0.0)),
                                  newest && level.first};
                size_t at = 0;
                while (at < before && out[at].token != child.token) ++at;
                if (at == before) out.push_back(child);
                else out[at] = {child.token, out[at].probability + child.probability, child.newest};
            }
            rest *= 1.0 - own;
            if (rest < NEGLIGIBLE) break;
        }
        const int furthest = std::max(longest, known.order);
        reach = furthest < 0 ? 0 : ORDERS[furthest];
    }

    void answer() {
        if (answering) return;
        answering = true;
        had = expected = REPEATS;
        for (size_t i = 0; i < trials.size(); ++i) {
            const double share = trials[i] ? std::min(1.0, CARRIED / trials[i]) : 1.0;
            hits[i] *= share;
            trials[i] *= share;
        }
    }

    void score(int bin, int overall, bool hit) {
        for (const int place : {bin, overall}) {
            hits[place] = FADE * hits[place] + hit;
            trials[place] = FADE * trials[place] + 1.0;
        }
    }

    void learn(int32_t token) {
        const Passage known = passage(ends, contexts(ends, run, COUNT - 1));
        if (known.context) {
            const Seen* seen = passages.pool.data() + known.context->at;
            bool hit = false;
            for (int s = 0; s < known.context->size; ++s) hit |= seen[s].token == token;
            score(known.bin, known.overall, hit);
        }
        bool foretold = false;
        for (const Level& level : levels) {
            bool hit = false;
            for (int s = level.begin; s < level.end; ++s) hit |= found[s].token == token;
            if (answering) {
                expected = REPEATS_FADE * expected + rate(level);
                had = REPEATS_FADE * had + hit;
            }
            score(level.bin, level.overall(), hit);
            foretold |= level.first && found[level.end - 1].token == token;
            if (hit) break;
        }
        run = foretold ? run + 1 : 0;
    }

    void extend(int32_t token) {
        if (token < 0) run = 0;
        else learn(token);
        own.count(ends, token);
    }

    void read(const int32_t* passage, int64_t n) {
        Ends end{};
        for (int64_t i = 0; i < n; ++i) passages.count(end, passage[i]);
    }
};

struct Node { Ends ends; int64_t run; int order; };     // order: of its longest context, by index

struct Entry {
    double probability;
    int64_t entered;
    int32_t parent, token, order;
    bool newest;
    bool operator<(const Entry& other) const {
        return probability != other.probability ? probability < other.probability : entered > other.entered;
    }
};

}  // namespace

// What the action returns, or -1 where the system had no memory.
template <class Action> int64_t tried(const Action& action) {
    try {
        return action();
    } catch (const std::bad_alloc&) {
        return -1;
    }
}

extern "C" {

// Null where the system had no memory.
void* longgraft_text_new() {
    try {
        return new Model;
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}
void longgraft_text_free(Model* model) { delete model; }
int64_t longgraft_text_run(const Model* model) { return model->run; }

// Those that follow return -1 where the system had no memory.
int64_t longgraft_text_answer(Model* model) {
    return tried([&] { return model->answer(), 0; });
}

int64_t longgraft_text_extend(Model* model, const int32_t* tokens, int64_t n) {
    return tried([&] {
        for (int64_t i = 0; i < n; ++i) model->extend(tokens[i]);
        return 0;
    });
}

int64_t longgraft_text_read(Model* model, const int32_t* passage, int64_t n) {
    return tried([&] { return model->read(passage, n), 0; });
}

// path [n] -> how many continuations; tokens, probabilities, newest: room for (1 + LEVELS) * KEPT; longest: [1]
int64_t longgraft_text_after(Model* model, const int32_t* path, int64_t n, int64_t run, int32_t* tokens,
                             double* probabilities, int32_t* newest, int32_t* longest) {
    return tried([&] {
        Ends ends = model->ends;
        for (int64_t i = 0; i < n; ++i) ends.add(path[i]);
        std::vector<Child> children;
        int own;
        model->after(ends, run, COUNT - 1, children, own, *longest);
        for (size_t i = 0; i < children.size(); ++i) {
            tokens[i] = children[i].token;
            probabilities[i] = children[i].probability;
            newest[i] = children[i].newest;
        }
        return static_cast<int64_t>(children.size());
    });
}

// The most probable paths below the text's last token -> how many nodes, the root first, `budget` at most; fewer where
// the next one's probability is at most floors[nodes so far], or nothing more is known.  orders: tokens of the longest
// context that a node came from.
int64_t longgraft_text_rank(Model* model, int64_t budget, const double* floors, int32_t* tokens, int32_t* parents,
                            double* probabilities, int32_t* orders) {
    return tried([&] {
        std::vector<Entry> heap{{1.0, 0, -1, 0, 0, true}};
        std::vector<Node> nodes;
        std::vector<Child> children;
        nodes.reserve(budget);
        int64_t entered = 0;
        const double lowest = budget > 1 ? *std::min_element(floors + 1, floors + budget) : 0.0;
        while (!heap.empty() && static_cast<int64_t>(nodes.size()) < budget) {
            std::pop_heap(heap.begin(), heap.end());
            const Entry e = heap.back();
            heap.pop_back();
            const int32_t node = static_cast<int32_t>(nodes.size());
            if (node && e.probability <= floors[node]) break;
            nodes.push_back(node ? nodes[e.parent] : Node{model->ends, model->run, COUNT - 1});
            Node& own = nodes.back();
            if (node) {
                own.ends.add(e.token);
                own.run = e.newest ? own.run + 1 : 0;
            }
            tokens[node] = e.token;
            parents[node] = e.parent;
            probabilities[node] = e.probability;
            orders[node] = e.order;
            // A child's longest context is at most one token longer than its parent's.
            int reach;
            model->after(own.ends, own.run, std::min(COUNT - 1, own.order + 1), children, own.order, reach);
            for (const Child& child : children) {
                const double probability = e.probability * child.probability;
                if (probability <= lowest) continue;
                heap.push_back({probability, ++entered, node, child.token, reach, child.newest});
                std::push_heap(heap.begin(), heap.end());
            }
        }
        return static_cast<int64_t>(nodes.size());
    });
}

}
