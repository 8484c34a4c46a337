// What follows a context, as a distribution: `continuations.py` says what this is.  tests/toys/continuations.py, in
// Python, gives the same numbers.

#include <new>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

// The first two lines are those of continuations.py.
constexpr int ORDERS[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32};
constexpr int COUNT = 10, FAR = 32, LEVELS = 4, KEPT = 24;
constexpr int WIDTH = 8;                // as there: tokens of a row
// A rate is the probability that the next token is one of a context's continuations, if it is none of a longer context's.
// A context of n tokens begins with n / (n + DOUBT), which weighs as many trials as STRENGTH.  An answer begins with as
// many of its prompt, and of earlier answers.
constexpr double DOUBT = 2.0, STRENGTH = 8.0;
constexpr int KINDS = 6;                // bins for what followed a context: one token or several, 1, 2 to 3 or more times
// Rates of longest contexts, by order and kind; then by order those of shorter contexts and those of passages.
constexpr int SHORTER = COUNT * KINDS, PASSAGES = SHORTER + COUNT, RATES = PASSAGES + COUNT;

// Where there is a row, the text's distribution has a share that is learnt, by the length of the text's longest context
// (below 2, 4, 12 tokens or longer) and by its largest probability (in fifths).  It begins with 1 - d (1 - top), where
// d = SHARED / (length + SHARED), which weighs as many tokens as FIRST; what was learnt decays by FADE a token.
constexpr int LENGTHS[] = {2, 4, 12}, TOPS = 5, BESIDE_ROWS = 4 * TOPS;
constexpr double SHARED = 4.0, FIRST = 8.0, FADE = 0.995;
// Beside drafted tokens, text and row together have a share that is learnt likewise, by the length of the text's longest
// context only (none, or the bins above).  It begins with EVEN.
constexpr int SHARES = BESIDE_ROWS + 5;
constexpr double EVEN = 0.5;
constexpr int ROOT = 1, RETRIEVED = 4;      // bits of a node's origin, those of longgraft/trees/tree.py
constexpr uint64_t BASE = 0x9E3779B97F4A7C15ull, MIXED = 0xD6E8FEB86659FD93ull;    // odd, at random

struct Seen { int32_t token; uint32_t count; };

// A context's continuations, the newest last.
struct Context {
    uint64_t key = 0;       // 0: free
    std::vector<Seen> seen;
};

// Polynomial hashes of the text up to each of its last ends, the newest first: a context's is what two of them differ by.
struct Ends {
    uint64_t hash[FAR + 1];
    int32_t length;             // tokens that a context can have
    int32_t last[2];            // the last token and the one before, if it has so many

    void add(int32_t token) {
        last[1] = last[0];
        last[0] = token;
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

// A context's continuations that no longer one has: found[begin, end), of which the last one is the newest.
struct Level { int rate, begin, end; uint32_t total; };

struct Rate {
    double hits, trials;

    // Has at most STRENGTH trials, because another text may repeat more or less.
    Rate tempered() const {
        const double share = std::min(1.0, STRENGTH / trials);
        return {hits * share, trials * share};
    }
};

struct Child {
    int32_t token;
    double probability;
    int64_t place = -1;         // its node in the draft; -1: it is not drafted
    int origin = RETRIEVED;
};

// What the target said last after a token, or after two: its most probable next tokens, the best first.
struct Row {
    int32_t tokens[WIDTH];
    float probabilities[WIDTH];
};

// Rows by context; the latest stands.
class Rows {
public:
    // The row after the last two tokens, or else after the last one, or null.
    const Row* find(const Ends& of) const {
        if (of.length > 1)
            if (const auto found = rows.find(key(of.last[1], of.last[0])); found != rows.end()) return &found->second;
        if (!of.length) return nullptr;
        const auto found = rows.find(key(-1, of.last[0]));
        return found == rows.end() ? nullptr : &found->second;
    }

    // before: the token before `last`, or -1
    void write(int32_t before, int32_t last, const Row& row) {
        rows[key(-1, last)] = row;
        if (before >= 0) rows[key(before, last)] = row;
    }

private:
    std::unordered_map<uint64_t, Row> rows;

    static uint64_t key(int32_t before, int32_t last) {
        return static_cast<uint64_t>(static_cast<uint32_t>(before)) << 32 | static_cast<uint32_t>(last);
    }
};

// The text's share of a prediction, as sums over tokens; no tokens yet where `all` is 0.
struct Share {
    double text, all;

    void begin(double share) {
        if (all == 0.0) *this = {FIRST * share, FIRST};
    }

    double value() const { return text / all; }

    // Learns from a token that both sides together gave a probability (expectation maximization, a step a token).
    void learn(double by_text, double by_other) {
        if (by_text + by_other > 0.0) *this = {FADE * text + by_text / (by_text + by_other), FADE * all + 1.0};
    }
};

// A token's probabilities by text and row together, and by the drafter.
struct Predicted { int32_t token; double text, drafted; };

// A node of the tree that was ranked last.
struct Ranked {
    int64_t token, parent;
    int share;          // index in `shares` of its children's mixture; -1: none were both drafted and known
    int begin, end;     // its children's probabilities, in `predicted`
};

// A drafted tree, parents before children.
struct Draft {
    int64_t nodes;
    const int64_t* tokens;
    const int64_t* parents;
    const float* scores;        // log-probabilities of paths; nodes without one are left out
    const int8_t* origin;
};

// A draft, with each node's children in order.
struct Drafted {
    Draft tree;
    std::vector<int64_t> child, sibling;    // by node: the first child, and the next sibling; -1: none

    explicit Drafted(const Draft& draft)
        : tree(draft), child(std::max<int64_t>(1, draft.nodes), -1), sibling(draft.nodes, -1) {
        for (int64_t node = tree.nodes - 1; node > 0; --node) {
            const int64_t parent = tree.parents[node];
            // False where either is not a number.
            if (!(tree.scores[node] > -INFINITY && tree.scores[parent] > -INFINITY)) continue;
            sibling[node] = child[parent];
            child[parent] = node;
        }
    }

    // A node's probability after its parent.
    double probability(int64_t node) const {
        return std::exp(static_cast<double>(tree.scores[node]) - static_cast<double>(tree.scores[tree.parents[node]]));
    }
};

int length_bin(int length) { return static_cast<int>(std::upper_bound(LENGTHS, LENGTHS + 3, length) - LENGTHS); }

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

    Context& find(uint64_t key) {
        for (size_t at = key >> 8 & (table.size() - 1);; at = (at + 1) & (table.size() - 1))
            if (table[at].key == key || !table[at].key) return table[at];
    }

    void count(uint64_t key, int32_t token) {
        Context* context = &find(key);
        if (!context->key) {
            if (2 * ++used > table.size()) {
                std::vector<Context> old(table.size() * 2);
                old.swap(table);
                for (Context& moved : old)
                    if (moved.key) find(moved.key) = std::move(moved);
                context = &find(key);
            }
            context->key = key;
        }
        std::vector<Seen>& seen = context->seen;
        const auto known = std::find_if(seen.begin(), seen.end(), [&](Seen one) { return one.token == token; });
        const Seen newest{token, known == seen.end() ? 1 : known->count + 1};
        if (known != seen.end()) seen.erase(known);
        else if (seen.size() == KEPT) seen.erase(seen.begin());     // the oldest is forgotten
        seen.push_back(newest);
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

struct Model {
    Counts own, passages;
    std::vector<uint32_t> stamps;       // by token: the lookup that last had it
    uint32_t stamp = 0;
    std::vector<Rate> rates, taught;    // those of this text, and those that its answer begins with, too
    Rows rows;
    Share shares[SHARES] = {};
    bool answering = false;
    Ends ends{};
    std::vector<Seen> found;
    std::vector<Level> levels;
    std::vector<Ranked> ranked;         // the last ranking with a draft, until the text goes on
    std::vector<Predicted> predicted;

    // before: the rates after earlier answers; null for none
    explicit Model(const Rate* before) {
        for (int i = 0; i < RATES; ++i) {
            const double n = ORDERS[i < SHORTER ? i / KINDS : (i - SHORTER) % COUNT];
            rates.push_back({STRENGTH * n / (n + DOUBT), STRENGTH});
            taught.push_back(before ? before[i] : rates[i]);
        }
    }

    bool unused(int32_t token) {
        const size_t id = static_cast<size_t>(token);
        if (id >= stamps.size()) stamps.resize(id + id / 2 + 1024);
        return stamps[id] != stamp;
    }

    // Adds a level, unless longer contexts have all its continuations.  rate: that of the first kind
    void add(const Context& context, int rate, bool by_kind) {
        const int begin = static_cast<int>(found.size());
        uint32_t total = 0;
        for (const Seen seen : context.seen) {
            if (!unused(seen.token)) continue;
            found.push_back(seen);
            total += seen.count;
        }
        const int end = static_cast<int>(found.size());
        if (begin == end) return;
        for (int s = begin; s < end; ++s) stamps[found[s].token] = stamp;
        const int kind = (end - begin > 1) * KINDS / 2 + (total > 1) + (total > 3);
        levels.push_back({rate + by_kind * kind, begin, end, total});
    }

    // Fills `levels`: a passage's context if it is longer than all of the text's own, then these, the longest first.
    // most: the longest own order that can match -> (the longest own one, the longest of all), by index, or -1
    std::pair<int, int> contexts(const Ends& of, int most) {
        levels.clear();
        found.clear();
        ++stamp;
        int longest = most;
        while (longest >= 0 && (of.length < ORDERS[longest] || !own.find(key_of(of, longest)).key)) --longest;
        int reach = longest;
        for (int i = COUNT - 1; passages.used && i > longest && reach == longest; --i) {
            if (of.length < ORDERS[i]) continue;
            const Context& context = passages.find(key_of(of, i));
            if (!context.key) continue;
            reach = i;
            add(context, PASSAGES + i, false);
        }
        size_t size = 0;
        for (int i = longest; i >= 0 && levels.size() < LEVELS; --i) {
            const Context& context = own.find(key_of(of, i));
            if (context.seen.size() == size) continue;      // the same continuations as the longer context's
            size = context.seen.size();
            add(context, levels.empty() ? i * KINDS : SHORTER + i, levels.empty());
        }
        return {longest, reach};
    }

    // -> as `contexts`; out: the continuations by the text alone
    std::pair<int, int> followed(const Ends& of, int most, std::vector<Child>& out) {
        out.clear();
        const auto longest = contexts(of, most);
        double rest = 1.0;
        for (const Level& level : levels) {
            const double rate = rates[level.rate].hits / rates[level.rate].trials;
            const double each = rest * rate / (level.total + 1.0);
            for (int s = level.begin; s < level.end; ++s) {
                const double newest = s == level.end - 1 ? 1.0 : 0.0;       // counts once more
                out.push_back({found[s].token, each * (found[s].count + newest)});
            }
            rest *= 1.0 - rate;
        }
        return longest;
    }

    // The share of a text whose longest context has this order, by index, and which says this.
    Share& share_of(int order, const std::vector<Child>& text) {
        double top = 0.0;
        for (const Child& child : text) top = std::max(top, child.probability);
        const int length = ORDERS[order];
        Share& share = shares[length_bin(length) * TOPS + std::min(TOPS - 1, static_cast<int>(top * TOPS))];
        share.begin(1.0 - SHARED / (length + SHARED) * (1.0 - top));
        return share;
    }

    // -> as `contexts`; out: the continuations by the text, and by the row of the last tokens if there is one
    std::pair<int, int> after(const Ends& of, int most, std::vector<Child>& out) {
        const auto longest = followed(of, most, out);
        const Row* row = rows.find(of);
        if (!row) return longest;
        double text = 0.0;
        if (!out.empty()) text = share_of(longest.second, out).value();
        for (Child& child : out) child.probability *= text;
        const size_t known = out.size();
        for (int i = 0; i < WIDTH && row->tokens[i] >= 0; ++i) {
            const double probability = (1.0 - text) * row->probabilities[i];
            const auto same = std::find_if(out.begin(), out.begin() + known,
                                           [&](const Child& child) { return child.token == row->tokens[i]; });
            if (same != out.begin() + known) same->probability += probability;
            else out.push_back({row->tokens[i], probability});
        }
        return longest;
    }

    // Learns the text's share beside a row from the next token.
    void share(int32_t token) {
        const Row* row = rows.find(ends);
        if (!row) return;
        std::vector<Child> text;
        const auto longest = followed(ends, COUNT - 1, text);
        if (text.empty()) return;
        Share& share = share_of(longest.second, text);
        double by_text = 0.0, by_row = 0.0;
        for (const Child& child : text)
            if (child.token == token) by_text = share.value() * child.probability;
        for (int i = 0; i < WIDTH; ++i)
            if (row->tokens[i] == token) by_row = (1.0 - share.value()) * row->probabilities[i];
        share.learn(by_text, by_row);
    }

    // Learns the shares beside drafted tokens from the next tokens, as far as the last ranking goes.
    void share_drafted(const int32_t* tokens, int64_t n) {
        int64_t node = ranked.empty() ? -1 : 0;
        for (int64_t i = 0; i < n && node >= 0; ++i) {
            const Ranked& at = ranked[node];
            for (int s = at.begin; s < at.end; ++s) {
                if (predicted[s].token != tokens[i]) continue;
                Share& share = shares[at.share];
                const double text = share.value();
                share.learn(text * predicted[s].text, (1.0 - text) * predicted[s].drafted);
            }
            const auto child = std::find_if(ranked.begin() + node + 1, ranked.end(), [&](const Ranked& one) {
                return one.parent == node && one.token == tokens[i];
            });
            node = child == ranked.end() ? -1 : child - ranked.begin();
        }
        ranked.clear();
        predicted.clear();
    }

    // Mixes the drafted children of a node with those that the text knows.  place: the node in the draft
    // reach: order of the text's longest context, by index, or -1 -> the share's index, or -1
    int mix(const Drafted& draft, int64_t place, int reach, std::vector<Child>& out) {
        const size_t known = out.size();
        int index = -1;
        double text = 0.0;
        if (known) {
            index = BESIDE_ROWS + (reach < 0 ? 0 : 1 + length_bin(ORDERS[reach]));
            shares[index].begin(EVEN);
            text = shares[index].value();
        }
        const size_t first = predicted.size();
        for (const Child& child : out) predicted.push_back({child.token, child.probability, 0.0});
        for (int64_t node = draft.child[place]; node >= 0; node = draft.sibling[node]) {
            const int32_t token = static_cast<int32_t>(draft.tree.tokens[node]);
            const double probability = draft.probability(node);
            const auto same = std::find_if(out.begin(), out.begin() + known,
                                           [&](const Child& child) { return child.token == token; });
            if (same == out.begin() + known) {
                out.push_back({token, 0.0, node, draft.tree.origin[node]});
                predicted.push_back({token, 0.0, probability});
            } else {
                same->place = node;
                same->origin |= draft.tree.origin[node];
                predicted[first + (same - out.begin())].drafted = probability;
            }
        }
        for (size_t i = 0; i < out.size(); ++i) {
            const Predicted& by = predicted[first + i];
            out[i].probability = text * by.text + (1.0 - text) * by.drafted;
        }
        return index;
    }

    void answer() {
        if (answering) return;
        answering = true;
        for (int i = 0; i < RATES; ++i) {
            const Rate own = rates[i].tempered(), earlier = taught[i].tempered();
            rates[i] = {own.hits + earlier.hits, own.trials + earlier.trials};
        }
    }

    void learn(int32_t token) {
        contexts(ends, COUNT - 1);
        for (const Level& level : levels) {
            bool hit = false;
            for (int s = level.begin; s < level.end; ++s) hit |= found[s].token == token;
            Rate& rate = rates[level.rate];
            rate = {rate.hits + hit, rate.trials + 1.0};
            if (hit) break;
        }
    }

    void extend(int32_t token) {
        if (token >= 0) {
            if (answering) share(token);
            learn(token);
        }
        own.count(ends, token);
    }

    void read(const int32_t* passage, int64_t n) {
        Ends end{};
        for (int64_t i = 0; i < n; ++i) passages.count(end, passage[i]);
    }
};

struct Node { Ends ends; int order; };     // order: of its longest context, by index

struct Entry {
    double probability;
    int64_t entered, parent;
    int32_t length;             // of the text's longest context above it, if the text knows it
    Child child;
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

// before: RATES pairs of hits and trials, or null.  Null where the system had no memory.
void* longgraft_text_new(const double* before) {
    try {
        return new Model(reinterpret_cast<const Rate*>(before));
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}
void longgraft_text_free(Model* model) { delete model; }
// rates: room for RATES pairs
int64_t longgraft_text_rates(const Model* model, double* rates) {
    std::memcpy(rates, model->rates.data(), RATES * sizeof(Rate));
    return RATES;
}

// Those that follow return -1 where the system had no memory.
int64_t longgraft_text_answer(Model* model) {
    return tried([&] { return model->answer(), 0; });
}

int64_t longgraft_text_extend(Model* model, const int32_t* tokens, int64_t n) {
    return tried([&] {
        model->share_drafted(tokens, n);
        for (int64_t i = 0; i < n; ++i) model->extend(tokens[i]);
        return 0;
    });
}

int64_t longgraft_text_read(Model* model, const int32_t* passage, int64_t n) {
    return tried([&] { return model->read(passage, n), 0; });
}

// Rows of some nodes of a tree, in writing order.
//     before: the token before the root, or -1
//     tokens, parents: [n], of the tree
//     nodes: [m]; ids, probabilities: [m, WIDTH], of their rows, an id of -1 where a row is shorter
int64_t longgraft_text_rows(Model* model, int64_t before, const int32_t* tokens, const int32_t* parents, int64_t m,
                            const int32_t* nodes, const int32_t* ids, const float* probabilities) {
    return tried([&] {
        for (int64_t i = 0; i < m; ++i) {
            const int32_t node = nodes[i], parent = parents[node];
            Row row;
            std::memcpy(row.tokens, ids + i * WIDTH, sizeof row.tokens);
            std::memcpy(row.probabilities, probabilities + i * WIDTH, sizeof row.probabilities);
            model->rows.write(parent < 0 ? static_cast<int32_t>(before) : tokens[parent], tokens[node], row);
        }
        return 0;
    });
}

// shares: SHARES pairs, which are read, or written if `set`
int64_t longgraft_text_shares(Model* model, double* shares, int64_t set) {
    if (set) std::memcpy(model->shares, shares, sizeof model->shares);
    else std::memcpy(shares, model->shares, sizeof model->shares);
    return SHARES;
}

// path [n] -> how many continuations; tokens, probabilities: room for LEVELS * KEPT + WIDTH; longest: [1]
int64_t longgraft_text_after(Model* model, const int32_t* path, int64_t n, int32_t* tokens,
                             double* probabilities, int32_t* longest) {
    return tried([&] {
        Ends ends = model->ends;
        for (int64_t i = 0; i < n; ++i) ends.add(path[i]);
        std::vector<Child> children;
        const int reach = model->after(ends, COUNT - 1, children).second;
        *longest = reach < 0 ? 0 : ORDERS[reach];
        for (size_t i = 0; i < children.size(); ++i) {
            tokens[i] = children[i].token;
            probabilities[i] = children[i].probability;
        }
        return static_cast<int64_t>(children.size());
    });
}

// The most probable paths below the text's last token, which the text knows or a draft has -> how many nodes, the root
// first, `budget` at most; fewer where the next one's probability is at most floors[nodes so far], or nothing more is known.
//     nodes, drafted .. origin: the draft, as in `Draft`; 0 and null for none
//     fields: [4, budget]: tokens, parents, lengths of the text's longest contexts, origin
//     probabilities: [budget], of paths
int64_t longgraft_text_rank(Model* model, int64_t budget, const double* floors, int64_t nodes, const int64_t* drafted,
                            const int64_t* above, const float* scores, const int8_t* origin, int64_t* fields,
                            double* probabilities) {
    return tried([&] {
        const Drafted draft(Draft{nodes, drafted, above, scores, origin});
        int64_t* const tokens = fields;
        int64_t* const parents = tokens + budget;
        int64_t* const lengths = parents + budget;
        int64_t* const origins = lengths + budget;
        std::vector<Entry> heap{{1.0, 0, -1, 0, Child{0, 1.0, nodes ? 0 : -1, ROOT}}};
        std::vector<Node> ranked;
        std::vector<Child> children;
        ranked.reserve(budget);
        model->ranked.clear();
        model->predicted.clear();
        int64_t entered = 0;
        const double lowest = budget > 1 ? *std::min_element(floors + 1, floors + budget) : 0.0;
        while (!heap.empty() && static_cast<int64_t>(ranked.size()) < budget) {
            std::pop_heap(heap.begin(), heap.end());
            const Entry e = heap.back();
            heap.pop_back();
            const int64_t node = static_cast<int64_t>(ranked.size());
            if (node && e.probability <= floors[node]) break;
            ranked.push_back(node ? ranked[e.parent] : Node{model->ends, COUNT - 1});
            Node& own = ranked.back();
            if (node) own.ends.add(e.child.token);
            tokens[node] = e.child.token;
            parents[node] = e.parent;
            lengths[node] = e.length;
            origins[node] = e.child.origin;
            probabilities[node] = e.probability;
            // A child's longest context is at most one token longer than its parent's.
            int reach;
            std::tie(own.order, reach) = model->after(own.ends, std::min(COUNT - 1, own.order + 1), children);
            const size_t known = children.size();
            if (nodes) {
                const int begin = static_cast<int>(model->predicted.size());
                int share = -1;
                if (e.child.place >= 0 && draft.child[e.child.place] >= 0)
                    share = model->mix(draft, e.child.place, reach, children);
                const int end = share < 0 ? begin : static_cast<int>(model->predicted.size());
                model->ranked.push_back({e.child.token, e.parent, share, begin, end});
            }
            const int32_t length = reach < 0 ? 0 : ORDERS[reach];
            for (size_t i = 0; i < children.size(); ++i) {
                const double probability = e.probability * children[i].probability;
                if (probability <= lowest) continue;
                heap.push_back({probability, ++entered, node, i < known ? length : 0, children[i]});
                std::push_heap(heap.begin(), heap.end());
            }
        }
        return static_cast<int64_t>(ranked.size());
    });
}

}
