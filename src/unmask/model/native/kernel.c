/* One forward of a Llama-shaped network for a flat list of tokens, each at its own place of its own row.

   Every thread runs the whole forward on its share of each stage, with a barrier between stages. Whatever the number of
   threads and whatever else is in the list, a token's numbers are computed by the same operations in the same order:
   each output is one sum over the inputs from first to last, each softmax runs over its own keys in chunks that start
   at multiples of CHUNK. So results are equal to the bit alone, in a batch, in pieces, and after a restart.

   Weights lie in panels of PANEL outputs, input after input, so that a stage reads them once, in order.
   F32: float. BF16: 32-bit words with output j in the low half and output j + PANEL / 2 in the high half. I8: signed
   bytes in pairs of inputs, output after output; their inputs are rounded to ACTIVATION levels per token and summed in
   whole numbers, SPAN inputs at a time. */

#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif

#ifndef WIDTH
#ifdef __AVX512F__
#define WIDTH 16
#else
#define WIDTH 8
#endif
#endif
#define PANEL (2 * WIDTH) /* outputs of a panel */
#define TILE 6            /* rows of a register tile */
#define ROWS 96           /* rows between two passes over the weights: their inputs stay in the second-level cache */
#define AHEAD 2048        /* bytes by which weights are called for before they are needed */
#define ACTIVATION 8191   /* levels of a rounded input, each way */
#define SPINS 20000       /* times that a barrier looks before it gives the core away: about a tenth of a millisecond */
#define SPAN 2048         /* inputs whose products with bytes are summed in 32 bits: 2048 * 127 * 8191 < 2^31 */
/* KEYS, CHUNK, QUERIES, WIDEST_GROUP, WIDEST_HEAD: from build.py, which shares them with the buffers' makers. */

#define UNROLL _Pragma("GCC unroll 16")
#define INLINE static inline __attribute__((always_inline))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

typedef float vf __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef uint32_t vu __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef float kf __attribute__((vector_size(4 * KEYS), aligned(4), may_alias));
typedef int32_t ki __attribute__((vector_size(4 * KEYS), aligned(4), may_alias));

enum { F32, BF16, I8 };

typedef struct {
    const void *weight;  /* panels */
    const float *scale;  /* per output, I8 only */
    const float *bias;   /* per output, or NULL */
    const float *down;   /* panels of a low-rank update: rank outputs, or NULL */
    const float *up;     /* panels: out outputs of rank inputs */
    int32_t in, out, rank;
} Linear;

typedef struct {
    const float *norm_in, *norm_mid, *norm_q, *norm_k; /* the last two may be NULL */
    Linear qkv, o, gate_up, down;                      /* gate_up: a panel of gates, a panel of ups, and so on */
    int32_t window;                                    /* keys a query sees back, itself included; 0: all */
} Layer;

typedef struct {
    int32_t type, layers, hidden, heads, kv_heads, head_dim, ff, vocab, halves; /* halves: the embedding is bfloat16 */
    float eps;
    const Layer *layer;
    const float *norm;      /* of the last hidden state */
    Linear head;
    const void *embedding;  /* [vocab, hidden], float or bfloat16; NULL takes the head's panels */
    const float *mask;      /* [hidden], what a masked slot is embedded as */
} Network;

typedef struct {
    int32_t tokens, reads, blocks, chunks; /* chunks: of CHUNK keys, up to the largest end */
    int32_t rows, capacity;                /* capacity: positions of a row, a multiple of CHUNK */
    const int32_t *token;                  /* -1: a masked slot */
    const int32_t *row, *position, *end;   /* a token sees the keys of its row from its window to end - 1 */
    const int32_t *adapted;                /* whether the low-rank updates act on a token; NULL: on none */
    const int32_t *read;                   /* indices of tokens whose logits are wanted */
    const int32_t *block;                  /* [blocks + 1] where neighbours of one row start that look together */
    const float *cosine, *sine;            /* [position, head_dim / 2] */
    float *key, *value;                    /* [layer, row, kv_head, …]: keys in panels of KEYS, values as they are */
    float *x, *a, *qkv, *wide, *scale;     /* [tokens, hidden | max(hidden, heads * head_dim, ff) | … | 2 ff | 1] */
    float *low;                            /* [tokens, largest rank] */
    int16_t *rounded;                      /* like a; I8 only */
    float *parts;                          /* [chunk, kv_head, token, head of the group, head_dim + KEYS], or NULL */
    float *logits;                         /* [reads, vocab] */
} Step;

typedef struct {
    _Atomic int arrived, round;
} Gate;

typedef struct {
    int me, all;
    Gate *gate;
} Share;

INLINE void rest(void) {
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
}

/* Wait for all threads. Whoever waits long gives its core away: another program may have taken the core of a thread
   that is still at work, and OpenMP's own barrier would spin against it. */
static void barrier(Share s) {
    if (s.all == 1) return;
    int round = atomic_load_explicit(&s.gate->round, memory_order_acquire);
    if (atomic_fetch_add_explicit(&s.gate->arrived, 1, memory_order_acq_rel) + 1 == s.all) {
        atomic_store_explicit(&s.gate->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&s.gate->round, round + 1, memory_order_release);
        return;
    }
    for (int n = 0; atomic_load_explicit(&s.gate->round, memory_order_acquire) == round; n++)
        if (n < SPINS) rest();
        else sched_yield();
}

INLINE int from(Share s, int n) { return (int)((int64_t)n * s.me / s.all); }
INLINE int to(Share s, int n) { return (int)((int64_t)n * (s.me + 1) / s.all); }

/* ---- products ---- */

INLINE vi add_pairs(vi sum, vi weights, int32_t pair) { /* plus sums of two products of 16-bit halves, per 32-bit lane */
#if WIDTH == 16 && defined(__AVX512VNNI__)
    return (vi)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)weights, _mm512_set1_epi32(pair));
#elif WIDTH == 16 && defined(__AVX512BW__)
    return sum + (vi)_mm512_madd_epi16((__m512i)weights, _mm512_set1_epi32(pair));
#elif WIDTH == 8 && defined(__AVX2__)
    return sum + (vi)_mm256_madd_epi16((__m256i)weights, _mm256_set1_epi32(pair));
#else
    return sum + ((weights << 16) >> 16) * (int32_t)(int16_t)pair + (weights >> 16) * (pair >> 16);
#endif
}

INLINE vi widen(const int8_t *bytes) { /* 2 WIDTH bytes to 16-bit numbers */
#if WIDTH == 16 && defined(__AVX512BW__)
    return (vi)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)bytes));
#elif WIDTH == 8 && defined(__AVX2__)
    return (vi)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)bytes));
#else
    typedef int8_t vb __attribute__((vector_size(2 * WIDTH), aligned(1), may_alias));
    typedef int16_t vh __attribute__((vector_size(4 * WIDTH)));
    return (vi)__builtin_convertvector(*(const vb *)bytes, vh);
#endif
}

/* Sums of R rows with P panels. R, P and type are constants wherever this is inlined. */
INLINE void tile(int type, int R, int P, const char *w, size_t panel, const void *x, size_t stride, int n,
                 vf out[TILE][8]) {
    if (type == I8) {
        UNROLL for (int r = 0; r < R; r++) UNROLL for (int p = 0; p < 2 * P; p++) out[r][p] = (vf){0};
        for (int first = 0; first < n; first += SPAN) {
            vi sum[TILE][8], weights[8];
            UNROLL for (int r = 0; r < R; r++) UNROLL for (int p = 0; p < 2 * P; p++) sum[r][p] = (vi){0};
            for (int k = first, stop = MIN(n, first + SPAN); k < stop; k += 2) {
                UNROLL for (int p = 0; p < P; p++) {
                    const char *at = w + p * panel + (size_t)k * PANEL;
                    __builtin_prefetch(at + AHEAD);
                    weights[2 * p] = widen((const int8_t *)at);
                    weights[2 * p + 1] = widen((const int8_t *)at + PANEL);
                }
                UNROLL for (int r = 0; r < R; r++) {
                    int32_t pair;
                    memcpy(&pair, (const int16_t *)x + r * stride + k, 4);
                    UNROLL for (int p = 0; p < 2 * P; p++) sum[r][p] = add_pairs(sum[r][p], weights[p], pair);
                }
            }
            UNROLL for (int r = 0; r < R; r++) UNROLL for (int p = 0; p < 2 * P; p++)
                out[r][p] += __builtin_convertvector(sum[r][p], vf);
        }
        return;
    }
    vf sum[TILE][8], weights[8];
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int p = 0; p < 2 * P; p++) sum[r][p] = (vf){0};
    for (int k = 0; k < n; k++) {
        UNROLL for (int p = 0; p < P; p++) {
            const char *at = w + p * panel + (size_t)k * PANEL * (type == F32 ? 4 : 2);
            __builtin_prefetch(at + AHEAD);
            if (type == F32) {
                weights[2 * p] = *(const vf *)at;
                weights[2 * p + 1] = *(const vf *)(at + 4 * WIDTH);
            } else {
                vu both = *(const vu *)at;
                weights[2 * p] = (vf)(both << 16);
                weights[2 * p + 1] = (vf)(both & 0xffff0000u);
            }
        }
        UNROLL for (int r = 0; r < R; r++) {
            float value = ((const float *)x)[r * stride + k];
            UNROLL for (int p = 0; p < 2 * P; p++) sum[r][p] = weights[p] * value + sum[r][p];
        }
    }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int p = 0; p < 2 * P; p++) out[r][p] = sum[r][p];
}

typedef struct {
    const Linear *linear;
    const void *x;      /* [rows, in] float or int16 */
    const float *scale; /* per row, I8 only */
    const float *low;   /* [rows, rank], 0 where no update acts; NULL: nowhere */
    float *y;           /* [rows, out] */
    int add;            /* y += instead of y = */
} Product;

/* R rows from `row` on, P panels from `panel` on. */
INLINE void block(int type, int R, int P, const Product *p, int row, int panel) {
    const Linear *l = p->linear;
    size_t bytes = (size_t)l->in * PANEL * (type == F32 ? 4 : type == BF16 ? 2 : 1);
    const char *x = (const char *)p->x + (size_t)row * l->in * (type == I8 ? 2 : 4);
    vf sum[TILE][8], update[TILE][8];
    tile(type, R, P, (const char *)l->weight + panel * bytes, bytes, x, l->in, l->in, sum);
    if (p->low) {
        size_t each = (size_t)l->rank * PANEL * 4;
        const float *low = p->low + (size_t)row * l->rank;
        tile(F32, R, P, (const char *)l->up + panel * each, each, low, l->rank, l->rank, update);
    }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int half = 0; half < 2 * P; half++) {
        int first = panel * PANEL + half * WIDTH;
        float *y = p->y + (size_t)(row + r) * l->out + first;
        vf value = sum[r][half];
        if (first + WIDTH <= l->out) {
            if (type == I8) value *= *(const vf *)(l->scale + first) * p->scale[row + r];
            if (l->bias) value += *(const vf *)(l->bias + first);
            if (p->low) value += update[r][half];
            if (p->add) value += *(vf *)y;
            *(vf *)y = value;
        } else
            for (int i = 0; first + i < l->out; i++) {
                float v = value[i];
                if (type == I8) v *= l->scale[first + i] * p->scale[row + r];
                if (l->bias) v += l->bias[first + i];
                if (p->low) v += update[r][half][i];
                y[i] = p->add ? y[i] + v : v;
            }
    }
}

INLINE void product(int type, Share s, const Product *p, int rows) {
    int panels = (p->linear->out + PANEL - 1) / PANEL, stop = to(s, panels);
    for (int base = 0; base < rows; base += ROWS) {
        int n = MIN(ROWS, rows - base), groups = (n + TILE - 1) / TILE;
        for (int panel = from(s, panels); panel < stop;) {
            if (n == 1 && panel + 4 <= stop) {
                block(type, 1, 4, p, base, panel), panel += 4;
                continue;
            }
            if (n == 2 && panel + 2 <= stop) {
                block(type, 2, 2, p, base, panel), panel += 2;
                continue;
            }
            for (int g = 0; g < groups; g++) {
                int row = base + n * g / groups;
                switch (n * (g + 1) / groups - n * g / groups) {
                case 1: block(type, 1, 1, p, row, panel); break;
                case 2: block(type, 2, 1, p, row, panel); break;
                case 3: block(type, 3, 1, p, row, panel); break;
                case 4: block(type, 4, 1, p, row, panel); break;
                case 5: block(type, 5, 1, p, row, panel); break;
                case 6: block(type, 6, 1, p, row, panel); break;
                }
            }
            panel++;
        }
    }
}

static __attribute__((noinline)) void product_f32(Share s, const Product *p, int rows) { product(F32, s, p, rows); }
static __attribute__((noinline)) void product_bf16(Share s, const Product *p, int rows) { product(BF16, s, p, rows); }
static __attribute__((noinline)) void product_i8(Share s, const Product *p, int rows) { product(I8, s, p, rows); }

/* The inner product of a low-rank update, 0 for tokens it does not act on. */
static const float *inner(const Step *step, Share s, const Linear *l, int rows) {
    if (!step->adapted || !l->down) return NULL;
    Linear down = {.weight = l->down, .in = l->in, .out = l->rank};
    product_f32(s, &(Product){.linear = &down, .x = step->a, .y = step->low}, rows);
    barrier(s);
    for (int i = from(s, rows); i < to(s, rows); i++)
        if (!step->adapted[i]) memset(step->low + (size_t)i * l->rank, 0, 4 * l->rank);
    barrier(s);
    return step->low;
}

/* y = linear(x), or y += linear(x); x is the step's `a`, which for I8 was rounded before. */
static void apply(const Network *net, const Step *step, Share s, const Linear *linear, int rows, float *y, int add) {
    const void *x = net->type == I8 ? (const void *)step->rounded : step->a;
    Product p = {linear, x, step->scale, inner(step, s, linear, rows), y, add};
    if (net->type == F32) product_f32(s, &p, rows);
    else if (net->type == BF16) product_bf16(s, &p, rows);
    else product_i8(s, &p, rows);
    barrier(s);
}

/* ---- rows ---- */

/* The sum of the lanes, always in the same order. */
INLINE float total(vf v) {
    float sum = 0;
    UNROLL for (int i = 0; i < WIDTH; i++) sum += v[i];
    return sum;
}

INLINE vf choose(vi which, vf yes, vf no) { return (vf)((which & (vi)yes) | (~which & (vi)no)); }
INLINE vf spread(float x) { return (vf){0} + x; }

/* Round row `i` of `a`, of n values, to ACTIVATION levels each way. */
static void round_row(const Network *net, const Step *step, int i, int n) {
    if (net->type != I8) return;
    const float *x = step->a + (size_t)i * n;
    int16_t *q = step->rounded + (size_t)i * n;
    int k = 0;
    vf high = spread(0), sum = spread(0);
    for (; k + WIDTH <= n; k += WIDTH) {
        vf size = (vf)(*(const vu *)(x + k) & 0x7fffffffu);
        high = choose(size > high, size, high);
        sum += size;
    }
    float most = 0, all = total(sum);
    for (int j = 0; j < WIDTH; j++) most = MAX(most, high[j]);
    for (int j = k; j < n; j++) most = MAX(most, fabsf(x[j])), all += fabsf(x[j]);
    float scale = all == all ? most / ACTIVATION : all, inverse = scale > 0 ? 1 / scale : 0; /* a NaN stays one */
    typedef int16_t vh __attribute__((vector_size(2 * WIDTH), aligned(2), may_alias));
    for (k = 0; k + WIDTH <= n; k += WIDTH) {
        vf v = *(const vf *)(x + k) * inverse;
        v += choose(v < 0, spread(-0.5f), spread(0.5f));
        *(vh *)(q + k) = __builtin_convertvector(__builtin_convertvector(v, vi), vh);
    }
    for (; k < n; k++) q[k] = (int16_t)(x[k] * inverse + (x[k] < 0 ? -0.5f : 0.5f));
    step->scale[i] = scale;
}

static void normalise(const float *x, const float *weight, float *y, int n, float eps) {
    vf part = spread(0);
    float sum = 0;
    int k = 0;
    for (; k + WIDTH <= n; k += WIDTH) part += *(const vf *)(x + k) * *(const vf *)(x + k);
    for (; k < n; k++) sum += x[k] * x[k];
    float factor = 1 / sqrtf((total(part) + sum) / n + eps);
    for (k = 0; k < n; k++) y[k] = x[k] * factor * weight[k];
}

static void normalise_rows(const Network *net, const Step *step, Share s, const float *weight) {
    int n = net->hidden;
    for (int i = from(s, step->tokens); i < to(s, step->tokens); i++) {
        normalise(step->x + (size_t)i * n, weight, step->a + (size_t)i * n, n, net->eps);
        round_row(net, step, i, n);
    }
    barrier(s);
}

INLINE vf exponential(vf x) { /* to 2 units in the last place, from -87 to 88 */
    x = choose(x < -87.0f, spread(-87), x);
    x = choose(x > 88.0f, spread(88), x);
    vf t = x * 1.44269504f;
    vi whole = __builtin_convertvector(t + choose(t < 0, spread(-0.5f), spread(0.5f)), vi);
    vf n = __builtin_convertvector(whole, vf);
    vf r = n * -0.693359375f + x;
    r = n * 2.12194440e-4f + r;
    vf p = spread(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    return p * (vf)((whole + 127) << 23);
}

/* a = silu(gate) * up, from panels of gates and ups in turn. */
static void gate(const Network *net, const Step *step, Share s) {
    int ff = net->ff, padded = (ff + PANEL - 1) / PANEL * PANEL;
    for (int i = from(s, step->tokens); i < to(s, step->tokens); i++) {
        const float *wide = step->wide + (size_t)i * 2 * padded;
        float *a = step->a + (size_t)i * ff;
        for (int first = 0; first < ff; first += WIDTH) {
            const float *at = wide + first / PANEL * 2 * PANEL + first % PANEL;
            vf g = *(const vf *)at, u = *(const vf *)(at + PANEL), y = g / (1.0f + exponential(-g)) * u;
            if (first + WIDTH <= ff) *(vf *)(a + first) = y;
            else
                for (int k = 0; first + k < ff; k++) a[first + k] = y[k];
        }
        round_row(net, step, i, ff);
    }
    barrier(s);
}

/* ---- attention ---- */

static float *at_head(const Network *net, const Step *step, float *buffer, int layer, int row, int kv_head) {
    size_t index = ((size_t)layer * step->rows + row) * net->kv_heads + kv_head;
    return buffer + index * step->capacity * net->head_dim;
}

/* Rotate one head of a token: rotary embedding, halves apart. */
static void rotate(float *x, const float *cosine, const float *sine, int half, float factor) {
    for (int d = 0; d < half; d++) {
        float a = x[d], b = x[d + half];
        x[d] = (a * cosine[d] - b * sine[d]) * factor;
        x[d + half] = (b * cosine[d] + a * sine[d]) * factor;
    }
}

/* Norms and rotation of queries and keys; keys and values go to their places in the cache. */
static void place(const Network *net, const Step *step, Share s, int index) {
    const Layer *layer = net->layer + index;
    int dim = net->head_dim, half = dim / 2, width = (net->heads + 2 * net->kv_heads) * dim;
    float factor = 1 / sqrtf((float)dim);
    for (int i = from(s, step->tokens); i < to(s, step->tokens); i++) {
        float *q = step->qkv + (size_t)i * width, *k = q + net->heads * dim, *v = k + net->kv_heads * dim;
        int position = step->position[i];
        const float *cosine = step->cosine + (size_t)position * half, *sine = step->sine + (size_t)position * half;
        for (int h = 0; h < net->heads; h++) {
            if (layer->norm_q) normalise(q + h * dim, layer->norm_q, q + h * dim, dim, net->eps);
            rotate(q + h * dim, cosine, sine, half, factor);
        }
        for (int h = 0; h < net->kv_heads; h++) {
            if (layer->norm_k) normalise(k + h * dim, layer->norm_k, k + h * dim, dim, net->eps);
            rotate(k + h * dim, cosine, sine, half, 1);
            float *key = at_head(net, step, step->key, index, step->row[i], h);
            key += (size_t)(position / KEYS) * KEYS * dim + position % KEYS;
            for (int d = 0; d < dim; d++) key[(size_t)d * KEYS] = k[h * dim + d];
            float *value = at_head(net, step, step->value, index, step->row[i], h);
            memcpy(value + (size_t)position * dim, v + h * dim, 4 * dim);
        }
    }
    barrier(s);
}

/* Scores of R queries with P panels of keys. */
INLINE void score(int R, int P, const float *q, const float *key, int dim, float *out) {
    kf sum[12];
    UNROLL for (int j = 0; j < R * P; j++) sum[j] = (kf){0};
    for (int d = 0; d < dim; d++) {
        kf keys[4];
        UNROLL for (int p = 0; p < P; p++) keys[p] = *(const kf *)(key + ((size_t)p * dim + d) * KEYS);
        UNROLL for (int r = 0; r < R; r++) UNROLL for (int p = 0; p < P; p++)
            sum[r * P + p] = keys[p] * q[r * dim + d] + sum[r * P + p];
    }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int p = 0; p < P; p++)
        *(kf *)(out + r * CHUNK + p * KEYS) = sum[r * P + p];
}

static void scores(const float *q, int rows, const float *key, int dim, int keys, float *out) {
    for (int p = 0; p * KEYS < keys; p += 4) {
        const float *at = key + (size_t)p * dim * KEYS;
        int r = 0;
        for (; r + 3 <= rows; r += 3) score(3, 4, q + r * dim, at, dim, out + r * CHUNK + p * KEYS);
        if (rows - r == 2) score(2, 4, q + r * dim, at, dim, out + r * CHUNK + p * KEYS);
        if (rows - r == 1) score(1, 4, q + r * dim, at, dim, out + r * CHUNK + p * KEYS);
    }
}

/* Sums of values under the weights of R queries, C vectors of them. */
INLINE void weigh(int R, int C, const float *weight, const float *value, int keys, int dim, float *out, int stride) {
    kf sum[12];
    UNROLL for (int j = 0; j < R * C; j++) sum[j] = (kf){0};
    for (int j = 0; j < keys; j++) {
        kf values[4];
        UNROLL for (int c = 0; c < C; c++) values[c] = *(const kf *)(value + (size_t)j * dim + c * KEYS);
        UNROLL for (int r = 0; r < R; r++) UNROLL for (int c = 0; c < C; c++)
            sum[r * C + c] = values[c] * weight[r * CHUNK + j] + sum[r * C + c];
    }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int c = 0; c < C; c++)
        *(kf *)(out + r * stride + c * KEYS) = sum[r * C + c];
}

static void sums(const float *weight, int rows, const float *value, int keys, int dim, float *out, int stride) {
    int d = 0;
    for (; d + 4 * KEYS <= dim; d += 4 * KEYS) {
        int r = 0;
        for (; r + 3 <= rows; r += 3) weigh(3, 4, weight + r * CHUNK, value + d, keys, dim, out + r * stride + d, stride);
        if (rows - r == 2) weigh(2, 4, weight + r * CHUNK, value + d, keys, dim, out + r * stride + d, stride);
        if (rows - r == 1) weigh(1, 4, weight + r * CHUNK, value + d, keys, dim, out + r * stride + d, stride);
    }
    for (; d < dim; d += KEYS)
        for (int r = 0; r < rows; r++) weigh(1, 1, weight + r * CHUNK, value + d, keys, dim, out + r * stride + d, stride);
}

/* Scores of a chunk become weights relative to the largest, 0 outside [start, stop). part: the largest, their sum. */
static void soften(float *score, int start, int stop, float *part) {
    for (int j = 0; j < MIN(start, CHUNK); j++) score[j] = -INFINITY;
    for (int j = stop; j < CHUNK; j++) score[j] = -INFINITY;
    vf high = spread(-INFINITY), sum = spread(0);
    for (int j = 0; j < CHUNK; j += WIDTH) high = choose(*(vf *)(score + j) > high, *(vf *)(score + j), high);
    float most = high[0];
    for (int i = 1; i < WIDTH; i++) most = MAX(most, high[i]);
    for (int j = 0; j < CHUNK; j += WIDTH) {
        vf before = *(vf *)(score + j), weight = exponential(before - most);
        weight = choose(before == -INFINITY, spread(0), weight);
        sum += weight;
        *(vf *)(score + j) = weight;
    }
    part[0] = most, part[1] = total(sum);
}

/* What one chunk of keys contributes to one query: the largest score, the sum of the weights, and from KEYS on the
   weighted sum of values. Chunks are merged from left to right, whoever computed them. */
INLINE int part_size(const Network *net) { return net->head_dim + KEYS; }

static void merge(float *into, const float *part, int size) {
    if (part[1] == 0) return; /* saw nothing */
    if (into[1] == 0) {
        memcpy(into, part, 4 * size);
        return;
    }
    float peak = MAX(into[0], part[0]);
    vf apart = spread(0);
    apart[0] = into[0] - peak, apart[1] = part[0] - peak;
    apart = exponential(apart);
    into[0] = peak;
    into[1] = into[1] * apart[0] + part[1] * apart[1];
    for (int d = KEYS; d < size; d++) into[d] = into[d] * apart[0] + part[d] * apart[1];
}

/* The part of one chunk for the queries of one block (neighbours of one row) that share a key/value head:
   [token, head of the group, part_size]. */
static void contribute(const Network *net, const Step *step, int index, int block, int kv_head, int chunk, float *parts) {
    int dim = net->head_dim, group = net->heads / net->kv_heads, width = (net->heads + 2 * net->kv_heads) * dim;
    int i = step->block[block], count = step->block[block + 1] - i, rows = count * group, size = part_size(net);
    int first = chunk * CHUNK, keys = 0, left = CHUNK, window = net->layer[index].window;
    float q[MAX(QUERIES, WIDEST_GROUP) * WIDEST_HEAD], weight[MAX(QUERIES, WIDEST_GROUP) * CHUNK];
    for (int t = 0; t < count; t++) {
        memcpy(q + t * group * dim, step->qkv + (size_t)(i + t) * width + kv_head * group * dim, 4 * group * dim);
        keys = MAX(keys, MIN(step->end[i + t] - first, CHUNK));
        left = MIN(left, window ? step->position[i + t] - window + 1 - first : 0);
    }
    if (left >= keys) { /* nobody sees this chunk */
        for (int r = 0; r < rows; r++) parts[r * size + 1] = 0;
        return;
    }
    float *key = at_head(net, step, step->key, index, step->row[i], kv_head) + (size_t)first * dim;
    float *value = at_head(net, step, step->value, index, step->row[i], kv_head) + (size_t)first * dim;
    scores(q, rows, key, dim, keys, weight);
    for (int r = 0; r < rows; r++) {
        int t = i + r / group, low = window ? MAX(0, step->position[t] - window + 1 - first) : 0;
        soften(weight + r * CHUNK, low, MAX(0, MIN(step->end[t] - first, keys)), parts + r * size);
    }
    sums(weight, rows, value, keys, dim, parts + KEYS, size);
}

/* a = the weighted mean of the values, for one query. */
static void settle(const Network *net, const Step *step, int token, int head, const float *sum) {
    float *a = step->a + ((size_t)token * net->heads + head) * net->head_dim;
    for (int d = 0; d < net->head_dim; d++) a[d] = sum[KEYS + d] / sum[1];
}

/* Many queries: a block and a key/value head at a time, chunk after chunk. */
static void attend_in_turn(const Network *net, const Step *step, Share s, int index) {
    int group = net->heads / net->kv_heads, size = part_size(net), items = step->blocks * net->kv_heads;
    float parts[MAX(QUERIES, WIDEST_GROUP) * (WIDEST_HEAD + KEYS)], sum[MAX(QUERIES, WIDEST_GROUP) * (WIDEST_HEAD + KEYS)];
    for (int item = from(s, items); item < to(s, items); item++) {
        int block = item / net->kv_heads, kv_head = item % net->kv_heads;
        int i = step->block[block], count = step->block[block + 1] - i, end = 0;
        for (int t = 0; t < count; t++) end = MAX(end, step->end[i + t]);
        for (int r = 0; r < count * group; r++) sum[r * size + 1] = 0;
        for (int chunk = 0; chunk * CHUNK < end; chunk++) {
            contribute(net, step, index, block, kv_head, chunk, parts);
            for (int r = 0; r < count * group; r++) merge(sum + r * size, parts + r * size, size);
        }
        for (int r = 0; r < count * group; r++)
            settle(net, step, i + r / group, kv_head * group + r % group, sum + r * size);
    }
}

/* Few queries: chunks are shared out too. */
static void attend_apart(const Network *net, const Step *step, Share s, int index) {
    int group = net->heads / net->kv_heads, size = part_size(net), queries = step->tokens * net->heads;
    int items = step->chunks * net->kv_heads * step->blocks;
    for (int item = from(s, items); item < to(s, items); item++) {
        int block = item % step->blocks, kv_head = item / step->blocks % net->kv_heads;
        int chunk = item / step->blocks / net->kv_heads;
        size_t query = (size_t)(chunk * net->kv_heads + kv_head) * step->tokens + step->block[block];
        contribute(net, step, index, block, kv_head, chunk, step->parts + query * group * size);
    }
    barrier(s);
    for (int n = from(s, queries); n < to(s, queries); n++) {
        int token = n / net->heads, head = n % net->heads;
        float sum[WIDEST_HEAD + KEYS] = {0};
        for (int chunk = 0; chunk < step->chunks; chunk++) {
            size_t query = (size_t)(chunk * net->kv_heads + head / group) * step->tokens + token;
            merge(sum, step->parts + (query * group + head % group) * size, size);
        }
        settle(net, step, token, head, sum);
    }
}

static void attention(const Network *net, const Step *step, Share s, int index) {
    if (step->parts) attend_apart(net, step, s, index);
    else attend_in_turn(net, step, s, index);
    barrier(s);
    if (net->type != I8) return;
    for (int i = from(s, step->tokens); i < to(s, step->tokens); i++)
        round_row(net, step, i, net->heads * net->head_dim);
    barrier(s);
}

/* ---- the forward ---- */

/* One value of a packed weight. */
static float unpack(int type, const Linear *l, int out, int in) {
    size_t panel = (size_t)(out / PANEL) * l->in * PANEL;
    int lane = out % PANEL;
    if (type == F32) return ((const float *)l->weight)[panel + (size_t)in * PANEL + lane];
    if (type == BF16) {
        uint32_t both, value;
        memcpy(&both, (const char *)l->weight + (panel + (size_t)in * PANEL) * 2 + lane % WIDTH * 4, 4);
        value = lane < WIDTH ? both << 16 : both & 0xffff0000u;
        float f;
        memcpy(&f, &value, 4);
        return f;
    }
    size_t at = panel + (size_t)(in & ~1) * PANEL + lane * 2 + (in & 1);
    return ((const int8_t *)l->weight)[at] * l->scale[out];
}

static void embed(const Network *net, const Step *step, Share s) {
    int n = net->hidden;
    for (int i = from(s, step->tokens); i < to(s, step->tokens); i++) {
        float *x = step->x + (size_t)i * n;
        int token = step->token[i];
        if (token < 0) memcpy(x, net->mask, 4 * n);
        else if (net->embedding && net->halves)
            for (int k = 0; k < n; k++) {
                uint32_t value = (uint32_t)((const uint16_t *)net->embedding)[(size_t)token * n + k] << 16;
                memcpy(x + k, &value, 4);
            }
        else if (net->embedding) memcpy(x, (const float *)net->embedding + (size_t)token * n, 4 * n);
        else
            for (int k = 0; k < n; k++) x[k] = unpack(net->type, &net->head, token, k);
    }
    barrier(s);
}

static void run(const Network *net, const Step *step, Share s) {
    embed(net, step, s);
    for (int index = 0; index < net->layers; index++) {
        const Layer *layer = net->layer + index;
        normalise_rows(net, step, s, layer->norm_in);
        apply(net, step, s, &layer->qkv, step->tokens, step->qkv, 0);
        place(net, step, s, index);
        attention(net, step, s, index);
        apply(net, step, s, &layer->o, step->tokens, step->x, 1);
        normalise_rows(net, step, s, layer->norm_mid);
        apply(net, step, s, &layer->gate_up, step->tokens, step->wide, 0);
        gate(net, step, s);
        apply(net, step, s, &layer->down, step->tokens, step->x, 1);
    }
    for (int i = from(s, step->reads); i < to(s, step->reads); i++) {
        normalise(step->x + (size_t)step->read[i] * net->hidden, net->norm, step->a + (size_t)i * net->hidden,
                  net->hidden, net->eps);
        round_row(net, step, i, net->hidden);
    }
    barrier(s);
    apply(net, step, s, &net->head, step->reads, step->logits, 0);
}

int unmask_panel(void) { return PANEL; }

void unmask_forward(const Network *net, const Step *step, int threads) {
#ifdef _OPENMP
    Gate gate = {0};
#pragma omp parallel num_threads(threads)
    run(net, step, (Share){omp_get_thread_num(), omp_get_num_threads(), &gate});
#else
    run(net, step, (Share){0, 1, NULL});
#endif
}
