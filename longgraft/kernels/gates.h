// Activations of gates, which multiply the numbers beside them.

#pragma once

#include <algorithm>
#include <cstdint>

#include "parallel.h"
#include "vectors.h"

namespace {

// e^-x for x >= 0
inline Sums decayed(Sums x) { return power_of_two(x * -LOG2_E); }
inline Sums sigmoid(Sums x) {
    const Sums e = decayed(absolute(x));
    return (x < 0.0f ? e : Sums{} + 1.0f) / (1.0f + e);
}
inline Sums silu(Sums x) {
    const Sums e = decayed(absolute(x));
    return x * (x < 0.0f ? e : Sums{} + 1.0f) / (1.0f + e);
}
inline Sums gelu(Sums x) {
    const Sums inner = 0.7978845608028654f * (x + 0.044715f * x * x * x), e = decayed(2.0f * absolute(inner));
    const Sums tanh = (1.0f - e) / (1.0f + e);
    return 0.5f * x * (1.0f + (inner < 0.0f ? -tanh : tanh));
}

constexpr int64_t SILU = 0, TANH = 1, CLAMPED = 2;      // TANH: gelu by tanh; CLAMPED: gpt-oss's

// How a gate and the number beside it become one.  slope, limit: of CLAMPED.
struct Gate {
    int64_t form;
    float slope, limit;

    Sums operator()(Sums gate, Sums up) const {
        if (form == TANH) return gelu(gate) * up;
        if (form == SILU) return silu(gate) * up;
        gate = gate > limit ? Sums{} + limit : gate;
        up = up > limit ? Sums{} + limit : up < -limit ? Sums{} - limit : up;
        return (up + 1.0f) * (gate * sigmoid(gate * slope));
    }
};

// gate = of(gate, up), over [count]
template <class T> void gated(T* gate, const T* up, int64_t count, const Gate& of, int threads) {
    parallel::loop((count + LANES - 1) / LANES, count >= 1 << 16 ? threads : 1, [&](int64_t vector) {
        const int64_t i = vector * LANES, some = std::min(LANES, count - i);
        T padded[2][LANES] = {};
        const T *own = gate + i, *other = up + i;
        if (some < LANES) {
            own = std::copy_n(own, some, padded[0]) - some;
            other = std::copy_n(other, some, padded[1]) - some;
        }
        store_row<T>(of(lanes(own), lanes(other)), nullptr, gate, i, count);
    });
}

}  // namespace
