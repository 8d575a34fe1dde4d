// The two small networks of an MlpPolicy, PPO's losses, their gradient and Adam, for minibatches of a few dozen rows, where
// calling a library costs more than the arithmetic does. rl/fast/network.py and rl/fast/ppo.py say what everything means.
// Plain C interface, no header but the compiler's own. One thread.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

// As many floats as the processor adds at once, and as many rows of sums as its registers hold; written out since
// compilers do not reliably keep a tile of plain arrays in registers. No sum's order depends on either.
#ifdef __AVX512F__
constexpr int64_t LANES = 16, TILE = 8;
#else
constexpr int64_t LANES = 8, TILE = 4;
#endif
typedef float Floats __attribute__((vector_size(4 * LANES)));
constexpr int64_t PANEL = 2 * LANES, BLOCK = 16;

// A view of a matrix; a transposed one has its strides swapped.
struct Matrix {
    const float* at;
    int64_t row_stride, column_stride;
};

// ROWS rows of a · panel, where panel has PANEL columns side by side; columns from `width` on are not stored.
template <int ROWS>
void tile(int64_t inner, Matrix a, const float* panel, const float* bias, float* c, int64_t c_stride, int64_t width) {
    Floats sums[ROWS][2] = {};
    for (int64_t k = 0; k < inner; ++k) {
        Floats low, high;
        std::memcpy(&low, panel + k * PANEL, sizeof low);
        std::memcpy(&high, panel + k * PANEL + LANES, sizeof high);
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; ++row) {
            const float factor = a.at[row * a.row_stride + k * a.column_stride];
            sums[row][0] += factor * low;
            sums[row][1] += factor * high;
        }
    }
    for (int row = 0; row < ROWS; ++row) {
        float line[PANEL];
        std::memcpy(line, sums[row], sizeof line);
        for (int64_t column = 0; column < width; ++column)
            c[row * c_stride + column] = line[column] + (bias ? bias[column] : 0.0f);
    }
}

// As tile, of 1 to MOST rows.
template <int MOST, class... Arguments>
void tile_of(int64_t rows, Arguments... arguments) {
    if constexpr (MOST > 1)
        if (rows < MOST) return tile_of<MOST - 1>(rows, arguments...);
    tile<MOST>(arguments...);
}

// c (rows × columns, one row after the other) = a · b, plus bias in each row where there is one.
void multiply(int64_t rows, int64_t columns, int64_t inner, Matrix a, Matrix b, const float* bias, float* c) {
    static thread_local std::vector<float> panel;
    panel.resize(inner * PANEL);
    for (int64_t first = 0; first < columns; first += PANEL) {
        const int64_t width = std::min(PANEL, columns - first);
        if (b.column_stride == 1) {
            for (int64_t k = 0; k < inner; ++k)
                for (int64_t j = 0; j < PANEL; ++j)
                    panel[k * PANEL + j] = j < width ? b.at[k * b.row_stride + first + j] : 0.0f;
        } else {
            if (width < PANEL) std::fill(panel.begin(), panel.end(), 0.0f);
            for (int64_t block = 0; block < inner; block += BLOCK)  // few enough lines of the panel to stay near
                for (int64_t j = 0; j < width; ++j)
                    for (int64_t k = block; k < std::min(inner, block + BLOCK); ++k)
                        panel[k * PANEL + j] = b.at[k * b.row_stride + (first + j) * b.column_stride];
        }
        for (int64_t row = 0; row < rows; row += TILE) {
            const Matrix part{a.at + row * a.row_stride, a.row_stride, a.column_stride};
            const float* shift = bias ? bias + first : nullptr;
            float* out = c + row * columns + first;
            tile_of<TILE>(std::min(TILE, rows - row), inner, part, panel.data(), shift, out, columns, width);
        }
    }
}

// exp(x) − 1 for x <= 0 without cancellation: x = n log 2 + r with |r| <= log(2)/2, the Taylor series of exp(r) − 1,
// and 2^n (exp(r) − 1) + (2^n − 1). Written out because it vectorises in a loop.
inline float expm1_nonpositive(float x) {
    const float bounded = x < -40.0f ? -40.0f : x;
    const float n = std::nearbyint(bounded * 1.44269504088896341f);
    const float r = bounded - n * 0.693359375f + n * 2.12194440e-4f;
    float y = 1.0f / 5040;
    y = y * r + 1.0f / 720;
    y = y * r + 1.0f / 120;
    y = y * r + 1.0f / 24;
    y = y * r + 1.0f / 6;
    y = y * r + 0.5f;
    y = y * r * r + r;
    const int32_t exponent = (static_cast<int32_t>(n) + 127) << 23;
    float scale;
    std::memcpy(&scale, &exponent, sizeof scale);
    return scale * y + (scale - 1.0f);
}

// tanh |x| = (1 − exp(−2|x|)) / (1 + exp(−2|x|))
inline float tanh_of(float x) {
    const float y = expm1_nonpositive(-2.0f * std::fabs(x));
    return std::copysign(-y / (2.0f + y), x);
}

void activate(float* values, int64_t count, bool is_tanh) {
    if (is_tanh)
        for (int64_t i = 0; i < count; ++i) values[i] = tanh_of(values[i]);
    else
        for (int64_t i = 0; i < count; ++i) values[i] = values[i] < 0.0f ? 0.0f : values[i];
}

// The gradient before the activation, from that behind it and the activation's value.
void through_activation(float* gradient, const float* values, int64_t count, bool is_tanh) {
    if (is_tanh)
        for (int64_t i = 0; i < count; ++i) gradient[i] *= 1.0f - values[i] * values[i];
    else
        for (int64_t i = 0; i < count; ++i) gradient[i] = values[i] > 0.0f ? gradient[i] : 0.0f;
}

void sum_rows(const float* values, int64_t rows, int64_t columns, float* sums) {
    std::fill(sums, sums + columns, 0.0f);
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t column = 0; column < columns; ++column) sums[column] += values[row * columns + column];
}

}  // namespace

extern "C" {

// layers linear layers of widths[0] → … → widths[layers]; per layer the weight (out, in), then the bias (out,).
// hidden: one after the other, what the activations give, (rows, widths[1]), …, (rows, widths[layers - 1]).
void mlp_forward(const int64_t* widths, int64_t layers, int64_t is_tanh, const float* weights, const float* inputs,
                 int64_t rows, float* hidden, float* outputs) {
    for (int64_t layer = 0; layer < layers; ++layer) {
        const int64_t in = widths[layer], out = widths[layer + 1];
        const bool last = layer + 1 == layers;
        float* target = last ? outputs : hidden;
        multiply(rows, out, in, {inputs, in, 1}, {weights, 1, in}, weights + out * in, target);
        if (!last) {
            activate(target, rows * out, is_tanh);
            hidden += rows * out;
        }
        inputs = target;
        weights += out * in + out;
    }
}

// Fills gradient, laid out as weights, from the gradient of the outputs of the last mlp_forward.
void mlp_backward(const int64_t* widths, int64_t layers, int64_t is_tanh, const float* weights, float* gradient,
                  const float* inputs, int64_t rows, const float* hidden, const float* of_outputs) {
    static thread_local std::vector<float> above, below;
    int64_t weights_end = 0, hidden_end = 0;
    for (int64_t layer = 0; layer < layers; ++layer) {
        weights_end += (widths[layer] + 1) * widths[layer + 1];
        hidden_end += layer + 1 < layers ? rows * widths[layer + 1] : 0;
    }
    above.assign(of_outputs, of_outputs + rows * widths[layers]);
    for (int64_t layer = layers - 1; layer >= 0; --layer) {
        const int64_t in = widths[layer], out = widths[layer + 1];
        weights_end -= (in + 1) * out;
        hidden_end -= layer ? rows * in : 0;
        const float* from = layer ? hidden + hidden_end : inputs;
        float* own = gradient + weights_end;
        multiply(out, in, rows, {above.data(), 1, out}, {from, in, 1}, nullptr, own);
        sum_rows(above.data(), rows, out, own + out * in);
        if (layer) {
            below.resize(rows * in);
            multiply(rows, in, out, {above.data(), out, 1}, {weights + weights_end, in, 1}, nullptr, below.data());
            through_activation(below.data(), from, rows * in, is_tanh);
            above.swap(below);
        }
    }
}

// PPO's policy and value loss on one minibatch, and their gradients by logits and values.
// clip_values < 0: the values are not clipped. losses: policy, value, divergence, clipped share, mean entropy.
void ppo_loss(int64_t rows, int64_t actions, const float* logits, const float* values, const int64_t* taken,
              const float* old_values, const float* old_log_probs, const float* advantages, const float* returns,
              int64_t normalise, double clip, double clip_values, double value_weight, float* log_p, float* p,
              float* entropy, float* by_logits, float* by_values, double* losses) {
    float centre = 0.0f, scale = 1.0f;
    if (normalise && rows > 1) {
        double sum = 0.0, squares = 0.0;
        for (int64_t i = 0; i < rows; ++i) sum += advantages[i];
        for (int64_t i = 0; i < rows; ++i) {
            const double away = advantages[i] - sum / rows;
            squares += away * away;
        }
        centre = static_cast<float>(sum / rows);
        scale = static_cast<float>(1.0 / (std::sqrt(squares / (rows - 1)) + 1e-8));
    }
    const float low = static_cast<float>(1 - clip), high = static_cast<float>(1 + clip);
    const float limit = static_cast<float>(clip_values), number = static_cast<float>(rows);
    std::fill(losses, losses + 5, 0.0);
    for (int64_t i = 0; i < rows; ++i) {
        const float* z = logits + i * actions;
        float *own_log_p = log_p + i * actions, *own_p = p + i * actions, *gradient = by_logits + i * actions;
        float top = z[0], total = 0.0f;
        for (int64_t a = 1; a < actions; ++a) top = z[a] > top || z[a] != z[a] ? z[a] : top;
        for (int64_t a = 0; a < actions; ++a) total += own_p[a] = std::exp(z[a] - top);
        const float log_total = std::log(total);
        float h = 0.0f;
        for (int64_t a = 0; a < actions; ++a) {
            own_log_p[a] = z[a] - top - log_total;
            own_p[a] /= total;
            h -= own_p[a] * own_log_p[a];
        }
        entropy[i] = h;

        const float advantage = (advantages[i] - centre) * scale;
        const float log_ratio = own_log_p[taken[i]] - old_log_probs[i], ratio = std::exp(log_ratio);
        const float bounded = ratio < low ? low : ratio > high ? high : ratio;
        const float free = advantage * ratio, clipped = advantage * bounded;
        // the clipped surrogate has a gradient inside the range, and outside where the free one is the smaller
        const bool passes = (ratio >= low && ratio <= high) || free < clipped;
        const float by_log_prob = passes ? -free / number : 0.0f;
        for (int64_t a = 0; a < actions; ++a) gradient[a] = -by_log_prob * own_p[a];
        gradient[taken[i]] += by_log_prob;

        const float moved = values[i] - old_values[i];
        float error = values[i] - returns[i];
        bool follows = true;
        if (clip_values >= 0) {
            follows = std::fabs(moved) <= limit;
            error = old_values[i] + (moved < -limit ? -limit : moved > limit ? limit : moved) - returns[i];
        }
        by_values[i] = follows ? static_cast<float>(value_weight) * error * (2.0f / number) : 0.0f;

        losses[0] -= free < clipped || free != free ? free : clipped;
        losses[1] += error * error;
        losses[2] += (ratio - 1.0f) - log_ratio;
        losses[3] += std::fabs(ratio - 1.0f) > clip;
        losses[4] += h;
    }
    for (int64_t i = 0; i < 5; ++i) losses[i] /= rows;
}

// Adam.step of the gradient times `scale`, which it is left as; `steps` counts this one.
void adam_step(int64_t count, float* __restrict weights, float* __restrict gradient, float* __restrict first,
               float* __restrict second, double steps, double rate, double beta1, double beta2, double epsilon,
               double clip) {
    // 1 − β from the doubles: 1 − 0.999f is off by 1e-5 of itself
    const float new1 = static_cast<float>(1.0 - beta1), new2 = static_cast<float>(1.0 - beta2);
    const float b2 = static_cast<float>(beta2);
    const float size = static_cast<float>(rate / (1.0 - std::pow(beta1, steps)));
    const float correction = static_cast<float>(std::sqrt(1.0 - std::pow(beta2, steps)));
    const float eps = static_cast<float>(epsilon), scale = static_cast<float>(clip);
    const int64_t whole = count - count % 8;
    const auto move = [&](int64_t i) {
        const float g = gradient[i] * scale;
        gradient[i] = g;
        first[i] += new1 * (g - first[i]);
        second[i] = b2 * second[i] + new2 * g * g;
        weights[i] -= size * first[i] / (std::sqrt(second[i]) / correction + eps);
    };
    // eight at a time: roots and divisions of sixteen take more than twice as long
    for (int64_t begin = 0; begin < whole; begin += 8)
        for (int64_t i = begin; i < begin + 8; ++i) move(i);
    for (int64_t i = whole; i < count; ++i) move(i);
}

}  // extern "C"
