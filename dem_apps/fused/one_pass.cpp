// One pass over the logits that makes an objective's value and its gradient together; see one_pass.py for what
// each output means and for the same computation in PyTorch. Plain C interface, so that no header but the
// compiler's own is needed and building takes seconds.
//
// Elements are worked on in blocks whose C × block floats stay in the first cache. Threads add into tables of
// their own, which are summed in a fixed order: the same thread count gives the same bits.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
#ifdef _OPENMP
#include <omp.h>
#endif

namespace {

struct bfloat16 { uint16_t bits; };

inline float widen(float value) { return value; }
inline float widen(bfloat16 value) {
    uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof wide);
    return wide;
}
inline void narrow(float value, float& out) { out = value; }
inline void narrow(float value, bfloat16& out) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;  // to nearest, ties to even
    out.bits = value == value ? static_cast<uint16_t>(rounded) : 0x7fc0;
}
#ifdef __FLT16_MAX__
inline float widen(_Float16 value) { return static_cast<float>(value); }
inline void narrow(float value, _Float16& out) { out = static_cast<_Float16>(value); }
#endif

// exp(x) for x <= 0 to about 1 ulp: x = n log 2 + r with |r| <= log(2)/2 and the Taylor–Chebyshev polynomial of
// Cephes for exp(r). Written out because it vectorises in a loop, which the library's function does not everywhere.
inline float exp_nonpositive(float x) {
    const float bounded = x < -87.0f ? -87.0f : x;
    const float n = std::nearbyint(bounded * 1.44269504088896341f);
    const float r = bounded - n * 0.693359375f + n * 2.12194440e-4f;
    float y = 1.9875691500e-4f;
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    const int32_t exponent = (static_cast<int32_t>(n) + 127) << 23;
    float scale;
    std::memcpy(&scale, &exponent, sizeof scale);
    return x < -87.0f ? 0.0f : y * scale;
}

enum Calibrator { GMC = 0, MEC = 1, SELF = 2 };
enum Norm { NONE = 0, L1 = 1, L2 = 2, LINF = 3 };

}  // namespace

extern "C" {

// Mirrors kernel.py's _Settings field by field.
struct Settings {
    int64_t outer, classes, inner;                     // the logits seen as (outer, classes, inner)
    int64_t outer_stride, class_stride, inner_stride;  // in elements; the gradient has the same
    int32_t calibrator, norm, delta_of_entropy, per_class, threads;
    float tau, alpha, delta_floor;
};

}

namespace {

struct Sums {  // per predicted class: elements, values, and the (C, C) sums of p and of z/δ
    std::vector<double> counts, values, probabilities, scaled_logits;
    Sums(int64_t classes, bool marginals)
        : counts(classes), values(classes), probabilities(marginals ? classes * classes : 0),
          scaled_logits(marginals ? classes * classes : 0) {}
};

template <typename T>
class Pass {
  public:
    Pass(const Settings& s, const T* logits, const uint8_t* mask, T* gradient, int32_t* predicted, float* inverse_delta)
        : s(s), logits(logits), mask(mask), gradient(gradient), predicted(predicted), inverse_delta(inverse_delta),
          marginals(s.calibrator == MEC), block(block_size(s.classes)) {}

    static int64_t block_size(int64_t classes) {
        const int64_t fitting = 2432 / classes / 16 * 16;
        return fitting < 16 ? 16 : fitting > 256 ? 256 : fitting;
    }

    void run(Sums& total) const {
        const int64_t per_row = (s.inner + block - 1) / block, blocks = s.outer * per_row;
        int threads = s.outer * s.inner * s.classes < 65536 ? 1 : s.threads;
        std::vector<Sums> partial(threads, Sums(s.classes, marginals));
#pragma omp parallel num_threads(threads) if (threads > 1)
        {
#ifdef _OPENMP
            const int thread = omp_get_thread_num();
            const int present = omp_get_num_threads();
#else
            const int thread = 0, present = 1;
#endif
            Workspace w(s.classes, block, marginals);
            int64_t since_flush = 0;
            for (int64_t b = blocks * thread / present; b < blocks * (thread + 1) / present; ++b) {
                const int64_t first = b % per_row * block;
                const int64_t size = s.inner - first < block ? s.inner - first : block;
                work_on_block(w, b / per_row, first, size);
                since_flush += size;
                if (since_flush >= 1024) {  // float sums stay short, so that their rounding does
                    flush(w, partial[thread]);
                    since_flush = 0;
                }
            }
            flush(w, partial[thread]);
        }
        for (const Sums& part : partial) {
            add(total.counts, part.counts);
            add(total.values, part.values);
            add(total.probabilities, part.probabilities);
            add(total.scaled_logits, part.scaled_logits);
        }
    }

  private:
    struct Workspace {
        std::vector<float> z, p, q, top, total, mean, tau_total, tau_mean, norm, value, counts, values, sum_p, sum_z;
        std::vector<int32_t> k;
        std::vector<uint8_t> counted;
        Workspace(int64_t classes, int64_t block, bool marginals)
            : z(classes * block), p(classes * block), q(classes * block), top(block), total(block), mean(block),
              tau_total(block), tau_mean(block), norm(block), value(block), counts(classes), values(classes),
              sum_p(marginals ? classes * classes : 0), sum_z(marginals ? classes * classes : 0), k(block),
              counted(block) {}
    };

    static void add(std::vector<double>& into, const std::vector<double>& part) {
        for (size_t i = 0; i < into.size(); ++i) into[i] += part[i];
    }
    static void drain(std::vector<double>& into, std::vector<float>& part) {
        for (size_t i = 0; i < into.size(); ++i) {
            into[i] += part[i];
            part[i] = 0.0f;
        }
    }
    static void flush(Workspace& w, Sums& sums) {
        drain(sums.counts, w.counts);
        drain(sums.values, w.values);
        drain(sums.probabilities, w.sum_p);
        drain(sums.scaled_logits, w.sum_z);
    }

    void work_on_block(Workspace& w, int64_t row, int64_t first, int64_t size) const {
        load(w, row, first, size);
        softmax(w, size);
        if (s.tau == 1.0f) reward(w, size);
        else softened_reward(w, size);
        delta(w, size);
        values(w, size);
        if (gradient) store_gradient(w, row, first, size);
        gather(w, row * s.inner + first, size);
    }

    void load(Workspace& w, int64_t row, int64_t first, int64_t size) const {
        const T* base = logits + row * s.outer_stride + first * s.inner_stride;
        const uint8_t* counted = mask ? mask + row * s.inner + first : nullptr;
        for (int64_t j = 0; j < size; ++j) {
            w.counted[j] = counted ? counted[j] : 1;
            w.top[j] = -INFINITY;
            w.k[j] = 0;
        }
        for (int64_t c = 0; c < s.classes; ++c) {
            const T* in = base + c * s.class_stride;
            float* z = &w.z[c * block];
            if (s.inner_stride == 1)
                for (int64_t j = 0; j < size; ++j) z[j] = widen(in[j]);
            else
                for (int64_t j = 0; j < size; ++j) z[j] = widen(in[j * s.inner_stride]);
            if (counted)  // whatever stands at a masked element, NaN included, must not reach a sum
                for (int64_t j = 0; j < size; ++j) z[j] = counted[j] ? z[j] : 0.0f;
            for (int64_t j = 0; j < size; ++j) {
                const bool greater = z[j] > w.top[j];
                w.top[j] = greater ? z[j] : w.top[j];
                w.k[j] = greater ? static_cast<int32_t>(c) : w.k[j];
            }
        }
    }

    // z -= max z; p = exp z / Σ exp z; mean = Σ p z; total = Σ exp z
    void softmax(Workspace& w, int64_t size) const {
        for (int64_t j = 0; j < size; ++j) w.total[j] = w.mean[j] = 0.0f;
        for (int64_t c = 0; c < s.classes; ++c) {
            float *z = &w.z[c * block], *p = &w.p[c * block];
            for (int64_t j = 0; j < size; ++j) {
                z[j] -= w.top[j];
                p[j] = exp_nonpositive(z[j]);
                w.total[j] += p[j];
                w.mean[j] += p[j] * z[j];
            }
        }
        for (int64_t j = 0; j < size; ++j) {
            w.norm[j] = 1.0f / w.total[j];  // free until delta() needs it
            w.mean[j] *= w.norm[j];
        }
        for (int64_t c = 0; c < s.classes; ++c) {
            float* p = &w.p[c * block];
            for (int64_t j = 0; j < size; ++j) p[j] *= w.norm[j];
        }
    }

    // q = R_T = p (z + T + 1), T = −mean
    void reward(Workspace& w, int64_t size) const {
        for (int64_t c = 0; c < s.classes; ++c) {
            const float *z = &w.z[c * block], *p = &w.p[c * block];
            float* q = &w.q[c * block];
            for (int64_t j = 0; j < size; ++j) q[j] = p[j] * (z[j] - w.mean[j] + 1.0f);
        }
    }

    // q = p_τ (z + T_τ + τ) / τ; mean = −T_τ from here on
    void softened_reward(Workspace& w, int64_t size) const {
        const float inverse_tau = 1.0f / s.tau;
        for (int64_t j = 0; j < size; ++j) w.tau_total[j] = w.tau_mean[j] = 0.0f;
        for (int64_t c = 0; c < s.classes; ++c) {
            const float* z = &w.z[c * block];
            float* q = &w.q[c * block];
            for (int64_t j = 0; j < size; ++j) {
                q[j] = exp_nonpositive(z[j] * inverse_tau);
                w.tau_total[j] += q[j];
                w.tau_mean[j] += q[j] * z[j];
            }
        }
        for (int64_t j = 0; j < size; ++j) {
            w.tau_total[j] = 1.0f / w.tau_total[j];
            w.mean[j] = w.tau_mean[j] * w.tau_total[j];
        }
        for (int64_t c = 0; c < s.classes; ++c) {
            const float* z = &w.z[c * block];
            float* q = &w.q[c * block];
            for (int64_t j = 0; j < size; ++j)
                q[j] = q[j] * w.tau_total[j] * (z[j] - w.mean[j] + s.tau) * inverse_tau;
        }
    }

    // norm = 1/δ, and 0 at masked elements
    void delta(Workspace& w, int64_t size) const {
        for (int64_t j = 0; j < size; ++j) w.norm[j] = s.norm == NONE ? 1.0f : 0.0f;
        for (int64_t c = 0; c < s.classes && s.norm != NONE; ++c) {
            const float *z = &w.z[c * block], *p = &w.p[c * block];
            float* q = &w.q[c * block];
            float* measured = s.delta_of_entropy ? w.value.data() : q;  // value is free until values() needs it
            if (s.delta_of_entropy)
                for (int64_t j = 0; j < size; ++j) measured[j] = p[j] * (z[j] - w.mean[j]);
            if (s.norm == L1)
                for (int64_t j = 0; j < size; ++j) w.norm[j] += std::fabs(measured[j]);
            else if (s.norm == L2)
                for (int64_t j = 0; j < size; ++j) w.norm[j] += measured[j] * measured[j];
            else
                for (int64_t j = 0; j < size; ++j) {
                    const float magnitude = std::fabs(measured[j]);
                    w.norm[j] = magnitude > w.norm[j] ? magnitude : w.norm[j];
                }
        }
        for (int64_t j = 0; j < size; ++j) {
            const float norm = s.norm == L2 ? std::sqrt(w.norm[j]) : w.norm[j];
            w.norm[j] = w.counted[j] ? 1.0f / (norm < s.delta_floor ? s.delta_floor : norm) : 0.0f;
        }
    }

    // The part of each element's value that does not need the class marginals; T = −(mean + top), see entropy.py.
    void values(Workspace& w, int64_t size) const {
        if (s.calibrator == GMC)
            for (int64_t j = 0; j < size; ++j)
                w.value[j] = -w.mean[j] + s.alpha * std::log(w.total[j]) + (s.alpha - 1.0f) * w.top[j];
        else if (s.calibrator == MEC)
            for (int64_t j = 0; j < size; ++j) w.value[j] = w.norm[j] * ((s.alpha - 1.0f) * w.top[j] - w.mean[j]);
        else
            for (int64_t j = 0; j < size; ++j)
                w.value[j] = w.norm[j] * (s.alpha - 1.0f) * (w.mean[j] + w.top[j]);
    }

    void store_gradient(const Workspace& w, int64_t row, int64_t first, int64_t size) const {
        T* base = gradient + row * s.outer_stride + first * s.inner_stride;
        const float penalty = marginals ? 0.0f : s.alpha;
        const bool apart = s.delta_of_entropy && !marginals;  // αp − q without near equals, whose difference 1/δ magnifies
        for (int64_t c = 0; c < s.classes; ++c) {
            const float *q = &w.q[c * block], *p = &w.p[c * block];
            T* out = base + c * s.class_stride;
            if (apart)
                for (int64_t j = 0; j < size; ++j)
                    narrow(w.norm[j] * p[j] * (s.alpha - 1.0f - (w.z[c * block + j] - w.mean[j])), out[j * s.inner_stride]);
            else if (s.inner_stride == 1)
                for (int64_t j = 0; j < size; ++j) narrow(w.norm[j] * (penalty * p[j] - q[j]), out[j]);
            else
                for (int64_t j = 0; j < size; ++j)
                    narrow(w.norm[j] * (penalty * p[j] - q[j]), out[j * s.inner_stride]);
        }
    }

    void gather(Workspace& w, int64_t element, int64_t size) const {
        for (int64_t j = 0; j < size; ++j) {
            const int32_t k = s.per_class ? w.k[j] : 0;
            if (predicted) predicted[element + j] = k;
            if (inverse_delta) inverse_delta[element + j] = w.norm[j];
            if (!w.counted[j]) continue;
            w.counts[k] += 1.0f;
            w.values[k] += w.value[j];
            if (!marginals) continue;
            float *sum_p = &w.sum_p[k * s.classes], *sum_z = &w.sum_z[k * s.classes];
            for (int64_t c = 0; c < s.classes; ++c) {
                sum_p[c] += w.p[c * block + j];
                sum_z[c] += w.z[c * block + j] * w.norm[j];
            }
        }
    }

    const Settings& s;
    const T* logits;
    const uint8_t* mask;
    T* gradient;
    int32_t* predicted;
    float* inverse_delta;
    const bool marginals;
    const int64_t block;
};

// gradient = weight[k] gradient + weighted_rows[k] / δ, in place
template <typename T>
void finish(const Settings& s, T* gradient, const int32_t* predicted, const float* inverse_delta, const float* weight,
            const float* weighted_rows) {
    const int64_t block = 256, per_row = (s.inner + block - 1) / block, blocks = s.outer * per_row;
    std::vector<float> columns(weighted_rows ? s.classes * s.classes : 0);
    for (int64_t k = 0; k < s.classes && weighted_rows; ++k)
        for (int64_t c = 0; c < s.classes; ++c) columns[c * s.classes + k] = weighted_rows[k * s.classes + c];
    const bool many = s.outer * s.inner * s.classes >= 65536;
#pragma omp parallel for num_threads(s.threads) schedule(static) if (many && s.threads > 1)
    for (int64_t b = 0; b < blocks; ++b) {
        const int64_t row = b / per_row, first = b % per_row * block, element = row * s.inner + first;
        const int64_t size = s.inner - first < block ? s.inner - first : block;
        const int32_t* k = predicted + element;
        float own_weight[256];
        for (int64_t j = 0; j < size; ++j) own_weight[j] = weight[k[j]];
        for (int64_t c = 0; c < s.classes; ++c) {
            T* g = gradient + row * s.outer_stride + first * s.inner_stride + c * s.class_stride;
            if (weighted_rows) {
                const float *column = &columns[c * s.classes], *scale = inverse_delta + element;
                if (s.inner_stride == 1)
                    for (int64_t j = 0; j < size; ++j)
                        narrow(widen(g[j]) * own_weight[j] + column[k[j]] * scale[j], g[j]);
                else
                    for (int64_t j = 0; j < size; ++j)
                        narrow(widen(g[j * s.inner_stride]) * own_weight[j] + column[k[j]] * scale[j],
                               g[j * s.inner_stride]);
            } else {
                for (int64_t j = 0; j < size; ++j)
                    narrow(widen(g[j * s.inner_stride]) * own_weight[j], g[j * s.inner_stride]);
            }
        }
    }
}

template <typename T>
void run_pass(const Settings* s, const void* logits, const uint8_t* mask, void* gradient, int32_t* predicted,
              float* inverse_delta, double* sums) {
    const bool marginals = s->calibrator == MEC;
    Sums total(s->classes, marginals);
    Pass<T>(*s, static_cast<const T*>(logits), mask, static_cast<T*>(gradient), predicted, inverse_delta).run(total);
    double* out = sums;
    for (const std::vector<double>* part : {&total.counts, &total.values, &total.probabilities, &total.scaled_logits}) {
        std::memcpy(out, part->data(), part->size() * sizeof(double));
        out += part->size();
    }
}

}  // namespace

#define EXPORT(NAME, TYPE)                                                                                            \
    extern "C" void pass_##NAME(const Settings* s, const void* logits, const uint8_t* mask, void* gradient,           \
                                int32_t* predicted, float* inverse_delta, double* sums) {                             \
        run_pass<TYPE>(s, logits, mask, gradient, predicted, inverse_delta, sums);                                    \
    }                                                                                                                 \
    extern "C" void finish_##NAME(const Settings* s, void* gradient, const int32_t* predicted,                        \
                                  const float* inverse_delta, const float* weight, const float* weighted_rows) {      \
        finish<TYPE>(*s, static_cast<TYPE*>(gradient), predicted, inverse_delta, weight, weighted_rows);              \
    }

EXPORT(float32, float)
EXPORT(bfloat16, bfloat16)
#ifdef __FLT16_MAX__
EXPORT(float16, _Float16)
#endif
