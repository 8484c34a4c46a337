// A mixture's experts: each row goes through those that the router chose for it.
//
// Rows are grouped by expert, so that a pass reads an expert once.  A product gives a row the same bits beside any other
// rows, and a row's experts are added in the order of its choices: what a row gets does not depend on the pass.

#pragma once

#include <algorithm>
#include <cstdint>

#include "gates.h"
#include "products.h"
#include "vectors.h"

namespace {

// gate, up, down: a weight for each expert.
struct Experts {
    const Weight *gate, *up, *down;
    int64_t count;
    Gate activation;
};

// The experts of each row [n, chosen], and their shares of its sum.
struct Choices {
    const int64_t* experts;
    const float* shares;
    int64_t n, chosen;
};

// The choices by expert: those of expert e are `order` [starts[e], starts[e + 1]), and choice c has `place[c]` among them.
struct Groups {
    int64_t *starts, *order, *place, most;

    Groups(const Choices& choices, int64_t count) : most(0) {
        const int64_t all = choices.n * choices.chosen;
        starts = reinterpret_cast<int64_t*>(scratch<7>(2 * (count + 1 + 2 * all)));
        order = starts + count + 1;
        place = order + all;
        std::fill_n(starts, count + 1, 0);
        for (int64_t c = 0; c < all; ++c) ++starts[choices.experts[c] + 1];
        for (int64_t e = 0; e < count; ++e) {
            most = std::max(most, starts[e + 1]);
            starts[e + 1] += starts[e];
        }
        for (int64_t c = 0; c < all; ++c) {
            place[c] = starts[choices.experts[c]]++;
            order[place[c]] = c;
        }
        for (int64_t e = count; e > 0; --e) starts[e] = starts[e - 1];
        starts[0] = 0;
    }
};

// x [n, hidden] -> y [n, hidden].
template <class T> void mixture(const Experts& w, const T* x, const Choices& choices, T* y, int threads) {
    const int64_t hidden = w.gate->in, inner = w.gate->out, all = choices.n * choices.chosen;
    const Groups groups(choices, w.count);
    T* const rows = reinterpret_cast<T*>(scratch<6>(groups.most * (hidden + 2 * inner) + all * hidden));
    T *const gate = rows + groups.most * hidden, *const up = gate + groups.most * inner;
    T* const found = up + groups.most * inner;
    for (int64_t e = 0; e < w.count; ++e) {
        const int64_t first = groups.starts[e], count = groups.starts[e + 1] - first;
        if (!count) continue;
        for (int64_t r = 0; r < count; ++r)
            std::copy_n(x + groups.order[first + r] / choices.chosen * hidden, hidden, rows + r * hidden);
        products<T>(rows, count, {{w.gate + e, gate}, {w.up + e, up}}, threads);
        gated(gate, up, count * inner, w.activation, threads);
        products<T>(gate, count, {{w.down + e, found + first * hidden}}, threads);
    }
    parallel::loop(choices.n, choices.n >= 64 ? threads : 1, [&](int64_t r) {
        const int64_t* const place = groups.place + r * choices.chosen;
        const float* const shares = choices.shares + r * choices.chosen;
        for (int64_t i = 0; i < hidden; i += LANES) {
            const int64_t some = std::min(LANES, hidden - i);
            Sums sum = {};
            for (int64_t c = 0; c < choices.chosen; ++c) {
                T part[LANES] = {};
                std::copy_n(found + place[c] * hidden + i, some, part);
                sum = fused(lanes(part), Sums{} + shares[c], sum);
            }
            store_row<T>(sum, nullptr, y + r * hidden, i, hidden);
        }
    });
}

}  // namespace
