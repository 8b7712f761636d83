/* Loops that read and write memory once where calls of NumPy would several times; see loops.py, which checks what is
 * passed here, and says what each function does. Every number is rounded as NumPy rounds it, operation by operation:
 * the bits are the same. So this file must be compiled without contraction of a * b + c, and without -ffast-math.
 */
#ifdef __FAST_MATH__
#error "-ffast-math would change the bits"
#endif

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <tgmath.h>

#define VERSION 14 /* of the functions' arguments; loops.py asks for the same */
#define TOGETHER 1024 /* numbers that pass through the nearest cache at once */
#define MOST_TERMS 4 /* of a combination */
#define AHEAD 4 /* rows that memory is asked for before they are read */
#define ABREAST 16 /* sums of a product */

/* Of GCC and Clang. What is declared as a BUFFER, or as BUFFERS, is released wherever its function ends. */
#define ALIKE static inline __attribute__((always_inline))
#define BUFFER __attribute__((cleanup(PyBuffer_Release))) Py_buffer
#define BUFFERS __attribute__((cleanup(release))) Buffers

/* The same function for several sets of instructions; which is run is settled when the module is loaded. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__has_attribute)
#if __has_attribute(target_clones)
#define CLONED __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#endif
#ifndef CLONED
#define CLONED
#endif

typedef union {
    double x;
    uint64_t bits;
} Wide;

/* --- arguments -------------------------------------------------------------------------------------------------- */

typedef struct {
    Py_ssize_t n;
    Py_buffer of[MOST_TERMS];
} Buffers;

static void release(Buffers *all)
{
    while (all->n) PyBuffer_Release(all->of + --all->n);
}

/* Whether these are m numbers of 4 or of 8 bytes. */
static int numbers(const Py_buffer *x, Py_ssize_t m)
{
    return (x->itemsize == sizeof(float) || x->itemsize == sizeof(double)) && x->len == m * x->itemsize;
}

/* Whether these are m numbers of 64 bits. */
static int words(const Py_buffer *x, Py_ssize_t m) { return x->len == m * (Py_ssize_t)sizeof(uint64_t); }

/* Whether a buffer has two axes, and each row of it its numbers one after the other. */
static int in_rows(const Py_buffer *x)
{
    return x->ndim == 2 && (x->shape[1] <= 1 || x->strides[1] == x->itemsize);
}

static PyObject *unfit(const char *function)
{
    return PyErr_Format(PyExc_ValueError, "%s: sizes do not fit together", function);
}

/* --- sums of integers ------------------------------------------------------------------------------------------- */

/* Adds the rows of x [n, m], each plus `common` [m] where there is one; `first` of several additions, it overwrites what
 * was there. IN_TWO: in two limbs, a coarse multiple, and what remains. Four rows are read side by side, which memory
 * serves better than one after the other; the bits of the constants in their sum are taken away again. 0: a number is
 * outside the bound, and what is in `sums` is no sum. WORD is an integer as wide as T. */
#define ADD_ENCODED(NAME, T, WORD, IN_TWO)                                                                             \
    ALIKE int NAME##_rows(const int rows, const T *restrict x, const T *restrict common, Py_ssize_t m,                 \
                           Py_ssize_t count, T most, double coarse, double fine, uint64_t kept,                        \
                           uint64_t *restrict high, uint64_t *restrict low)                                            \
    {                                                                                                                  \
        WORD largest = 0;                                                                                              \
        for (Py_ssize_t j = 0; j < count; ++j) {                                                                       \
            uint64_t above = -rows * ((Wide){coarse}).bits, below = -rows * ((Wide){fine}).bits;                       \
            for (int i = 0; i < rows; ++i) {                                                                           \
                const T value = x[i * m + j] + common[j];                                                              \
                const double shifted = (double)value + coarse;                                                         \
                const union { T x; WORD bits; } size = {fabs(value)}; /* as integers in the same order, NaN last */    \
                largest = size.bits > largest ? size.bits : largest;                                                   \
                above += ((Wide){shifted}).bits;                                                                       \
                if (IN_TWO) below += ((Wide){((double)value - (shifted - coarse)) + fine}).bits;                       \
            }                                                                                                          \
            high[j] = (high[j] & kept) + above;                                                                        \
            if (IN_TWO) low[j] = (low[j] & kept) + below;                                                              \
        }                                                                                                              \
        return largest > ((union { T x; WORD bits; }){most}).bits;                                                     \
    }                                                                                                                  \
    CLONED static int NAME(const T *values, const T *common, Py_ssize_t n, Py_ssize_t m, double bound,                 \
                           const double *constants, int first, uint64_t *sums)                                         \
    {                                                                                                                  \
        static const T none[TOGETHER];                                                                                 \
        T most = (T)bound;                                                                                             \
        if (most > bound) most = nextafter(most, (T)0);                                                                \
        for (Py_ssize_t start = 0; start < m; start += TOGETHER) {                                                     \
            const Py_ssize_t count = m - start < TOGETHER ? m - start : TOGETHER;                                      \
            uint64_t *high = sums + start, *low = high + (IN_TWO ? m : 0);                                             \
            const T *also = common ? common + start : none;                                                            \
            int outside = 0;                                                                                           \
            for (Py_ssize_t i = 0, rows; i < n; i += rows) {                                                           \
                const T *x = values + i * m + start;                                                                   \
                const uint64_t kept = first && !i ? 0 : -1;                                                            \
                rows = n - i < 4 ? 1 : 4;                                                                              \
                outside |= rows == 1 ? NAME##_rows(1, ROWS) : NAME##_rows(4, ROWS);                                    \
            }                                                                                                          \
            if (outside) return 0;                                                                                     \
        }                                                                                                              \
        return 1;                                                                                                      \
    }

#define ROWS x, also, m, count, most, constants[0], constants[1], kept, high, low
ADD_ENCODED(add_floats, float, int32_t, 0)
ADD_ENCODED(add_doubles, double, int64_t, 0)
ADD_ENCODED(add_floats_in_two, float, int32_t, 1)
ADD_ENCODED(add_doubles_in_two, double, int64_t, 1)
#undef ROWS

static PyObject *add_encoded(PyObject *module, PyObject *arguments)
{
    BUFFER values = {0}, common = {0}, sums = {0};
    Py_ssize_t n, m;
    double bound, constants[2];
    int first, within;
    if (!PyArg_ParseTuple(arguments, "y*z*nnd(dd)pw*", &values, &common, &n, &m, &bound, constants, constants + 1,
                          &first, &sums))
        return NULL;
    const int is_float = values.itemsize == sizeof(float), two = constants[1] != 0;
    if (!numbers(&values, n * m) || (common.buf && common.len != m * values.itemsize) || !words(&sums, m << two))
        return unfit("add_encoded");
    if (!n && first) memset(sums.buf, 0, sums.len);
#define CALL(NAME) NAME(values.buf, common.buf, n, m, bound, constants, first, sums.buf)
    Py_BEGIN_ALLOW_THREADS
    if (is_float)
        within = two ? CALL(add_floats_in_two) : CALL(add_floats);
    else
        within = two ? CALL(add_doubles_in_two) : CALL(add_doubles);
    Py_END_ALLOW_THREADS
#undef CALL
    return PyBool_FromLong(within);
}

/* --- rows ------------------------------------------------------------------------------------------------------- */

/* out[i] = raw[at[i]] * scale + shift; each of the two is absent, one number, or one a column; `at` may be absent too, and
 * out be raw then. */
#define GATHER(NAME, RAW, T)                                                                                           \
    CLONED static void NAME(const Py_buffer *raw, const int64_t *at, Py_ssize_t b, const T *scale, Py_ssize_t scales,  \
                            const T *shift, Py_ssize_t shifts, const Py_buffer *out)                                   \
    {                                                                                                                  \
        const Py_ssize_t p = raw->shape[1], bytes = p * (Py_ssize_t)sizeof(RAW);                                       \
        const T factor = scales == 1 ? *scale : 1;                                                                     \
        for (Py_ssize_t i = 0; i < b; ++i) {                                                                           \
            const RAW *row = (const RAW *)((const char *)raw->buf + (at ? at[i] : i) * raw->strides[0]);               \
            T *to = (T *)((char *)out->buf + i * out->strides[0]);                                                     \
            if (at && i + AHEAD < b) {                                                                                 \
                const char *next = (const char *)raw->buf + at[i + AHEAD] * raw->strides[0];                           \
                for (Py_ssize_t k = 0; k < bytes; k += 64) __builtin_prefetch(next + k);                               \
            }                                                                                                          \
            if (scales > 1)                                                                                            \
                for (Py_ssize_t j = 0; j < p; ++j) to[j] = (T)row[j] * scale[j];                                       \
            else                                                                                                       \
                for (Py_ssize_t j = 0; j < p; ++j) to[j] = (T)row[j] * factor;                                         \
            if (shifts)                                                                                                \
                for (Py_ssize_t j = 0; j < p; ++j) to[j] += shift[shifts > 1 ? j : 0];                                 \
        }                                                                                                              \
    }

GATHER(gather_bytes_floats, uint8_t, float)
GATHER(gather_bytes_doubles, uint8_t, double)
GATHER(gather_floats, float, float)
GATHER(gather_floats_doubles, float, double)
GATHER(gather_doubles_floats, double, float)
GATHER(gather_doubles, double, double)

static PyObject *gather(PyObject *module, PyObject *arguments)
{
    BUFFER raw = {0}, at = {0}, scale = {0}, shift = {0}, out = {0};
    PyObject *values, *given;
    if (!PyArg_ParseTuple(arguments, "Oz*z*z*O", &values, &at, &scale, &shift, &given) ||
        PyObject_GetBuffer(values, &raw, PyBUF_STRIDES) ||
        PyObject_GetBuffer(given, &out, PyBUF_STRIDES | PyBUF_WRITABLE))
        return NULL;
    if (!in_rows(&raw) || !in_rows(&out)) return unfit("gather");
    const int64_t *chosen = at.buf;
    const Py_ssize_t rows = raw.shape[0], p = raw.shape[1], b = chosen ? at.len / (Py_ssize_t)sizeof(int64_t) : rows;
    const Py_ssize_t size = raw.itemsize, item = out.itemsize, scales = scale.len / item, shifts = shift.len / item;
    if (out.shape[0] != b || out.shape[1] != p || !numbers(&out, b * p) || (size != 1 && !numbers(&raw, rows * p)) ||
        (scales > 1 && scales != p) || (shifts > 1 && shifts != p))
        return unfit("gather");
    for (Py_ssize_t i = 0; chosen && p && i < b; ++i)
        if (chosen[i] < 0 || chosen[i] >= rows)
            return PyErr_Format(PyExc_IndexError, "row %lld of %zd", (long long)chosen[i], rows);
#define CALL(NAME) NAME(&raw, chosen, b, scale.buf, scales, shift.buf, shifts, &out)
    Py_BEGIN_ALLOW_THREADS
    if (item == sizeof(float))
        size == 1 ? CALL(gather_bytes_floats) : size == 4 ? CALL(gather_floats) : CALL(gather_doubles_floats);
    else
        size == 1 ? CALL(gather_bytes_doubles) : size == 4 ? CALL(gather_floats_doubles) : CALL(gather_doubles);
    Py_END_ALLOW_THREADS
#undef CALL
    Py_RETURN_NONE;
}

/* --- linear combinations ---------------------------------------------------------------------------------------- */

/* out = factors[0] * x[0] + factors[1] * x[1] + ..., from left to right; out may be one of x. It does so for each row of
 * out [rows, width], whose columns from `at` on have factors of their own, behind the others; x[k] has a row for each, or
 * one for all. */
#define COMBINE(NAME, T)                                                                                               \
    ALIKE void NAME##_terms(const int terms, const T *restrict factor, const T *const *x, Py_ssize_t m, T *out)        \
    {                                                                                                                  \
        for (Py_ssize_t j = 0; j < m; ++j) {                                                                           \
            T sum = factor[0] * x[0][j];                                                                               \
            for (int k = 1; k < terms; ++k) sum += factor[k] * x[k][j];                                                \
            out[j] = sum;                                                                                              \
        }                                                                                                              \
    }                                                                                                                  \
    CLONED static void NAME(const double *given, const Buffers *x, Py_ssize_t rows, Py_ssize_t width, Py_ssize_t at,   \
                            T *out)                                                                                    \
    {                                                                                                                  \
        const int terms = (int)x->n;                                                                                   \
        T factors[2 * MOST_TERMS];                                                                                     \
        const T *row[MOST_TERMS];                                                                                      \
        for (int k = 0; k < 2 * terms; ++k) factors[k] = (T)given[k];                                                  \
        for (Py_ssize_t i = 0; i < rows; ++i)                                                                          \
            for (Py_ssize_t start = 0, stop = at, part = 0; part < 2; ++part, start = at, stop = width) {              \
                const T *of_part = factors + part * terms;                                                             \
                T *to = out + i * width + start;                                                                       \
                for (int k = 0; k < terms; ++k) {                                                                      \
                    const int common = x->of[k].len == width * (Py_ssize_t)sizeof(T);                                  \
                    row[k] = (const T *)x->of[k].buf + (common ? 0 : i * width) + start;                               \
                }                                                                                                      \
                switch (terms) {                                                                                       \
                case 1: NAME##_terms(1, of_part, row, stop - start, to); break;                                        \
                case 2: NAME##_terms(2, of_part, row, stop - start, to); break;                                        \
                case 3: NAME##_terms(3, of_part, row, stop - start, to); break;                                        \
                case 4: NAME##_terms(4, of_part, row, stop - start, to); break;                                        \
                }                                                                                                      \
            }                                                                                                          \
    }

COMBINE(combine_floats, float)
COMBINE(combine_doubles, double)

static PyObject *combine(PyObject *module, PyObject *arguments)
{
    BUFFER out = {0};
    BUFFERS x = {0};
    PyObject *given, *arrays;
    double factors[2 * MOST_TERMS];
    Py_ssize_t width, at;
    if (!PyArg_ParseTuple(arguments, "O!O!nnw*", &PyTuple_Type, &given, &PyTuple_Type, &arrays, &width, &at, &out))
        return NULL;
    const Py_ssize_t terms = PyTuple_GET_SIZE(arrays), row = width * out.itemsize;
    if (terms < 1 || terms > MOST_TERMS || PyTuple_GET_SIZE(given) != 2 * terms || at < 0 || at > width ||
        !numbers(&out, row ? out.len / row * width : 0))
        return unfit("combine");
    for (; x.n < terms; ++x.n)
        if (PyObject_GetBuffer(PyTuple_GET_ITEM(arrays, x.n), x.of + x.n, PyBUF_SIMPLE)) return NULL;
    for (Py_ssize_t k = 0; k < 2 * x.n; ++k) factors[k] = PyFloat_AsDouble(PyTuple_GET_ITEM(given, k));
    if (PyErr_Occurred()) return NULL;
    for (const Py_buffer *part = x.of; part < x.of + x.n; ++part)
        if (part->itemsize != out.itemsize || (part->len != row && part->len != out.len)) return unfit("combine");
    if (!row) Py_RETURN_NONE;
    Py_BEGIN_ALLOW_THREADS
    if (out.itemsize == sizeof(float))
        combine_floats(factors, &x, out.len / row, width, at, out.buf);
    else
        combine_doubles(factors, &x, out.len / row, width, at, out.buf);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* --- inner products --------------------------------------------------------------------------------------------- */

/* That of x and y [m] in float64: sums side by side, then halves of them. */
CLONED static double product_of(const float *x, const float *y, Py_ssize_t m)
{
    double sums[ABREAST] = {0};
    for (; m >= ABREAST; m -= ABREAST, x += ABREAST, y += ABREAST)
        for (int k = 0; k < ABREAST; ++k) sums[k] += (double)x[k] * y[k];
    for (int k = 0; k < m; ++k) sums[k] += (double)x[k] * y[k];
    for (int half = ABREAST / 2; half; half /= 2)
        for (int k = 0; k < half; ++k) sums[k] += sums[k + half];
    return *sums;
}

static PyObject *row_products(PyObject *module, PyObject *arguments)
{
    BUFFER x = {0}, y = {0}, products = {0};
    if (!PyArg_ParseTuple(arguments, "y*y*w*", &x, &y, &products)) return NULL;
    const Py_ssize_t n = products.len / (Py_ssize_t)sizeof(double), m = n ? x.len / (Py_ssize_t)sizeof(float) / n : 0;
    if (x.itemsize != sizeof(float) || !numbers(&x, n * m) || x.len != y.len)
        return unfit("row_products");
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < n; ++i)
        ((double *)products.buf)[i] = product_of((float *)x.buf + i * m, (float *)y.buf + i * m, m);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* --- losses --------------------------------------------------------------------------------------------------- */

/* power [m, h] <- (power / its row's sum - 1 of the class y) * weight; sums go from left to right. */
#define RESIDUALS(NAME, T)                                                                                             \
    static void NAME(T *restrict power, Py_ssize_t m, Py_ssize_t h, const int64_t *restrict y,                         \
                     const double *restrict weights)                                                                   \
    {                                                                                                                  \
        for (Py_ssize_t i = 0; i < m; ++i, power += h) {                                                               \
            const T weight = (T)weights[i];                                                                            \
            T sum = power[0];                                                                                          \
            for (Py_ssize_t k = 1; k < h; ++k) sum += power[k];                                                        \
            for (Py_ssize_t k = 0; k < h; ++k) power[k] /= sum;                                                        \
            power[y[i]] -= 1;                                                                                          \
            for (Py_ssize_t k = 0; k < h; ++k) power[k] *= weight;                                                     \
        }                                                                                                              \
    }

RESIDUALS(residuals_floats, float)
RESIDUALS(residuals_doubles, double)

static PyObject *residuals(PyObject *module, PyObject *arguments)
{
    BUFFER power = {0}, y = {0}, weights = {0};
    Py_ssize_t m, h;
    if (!PyArg_ParseTuple(arguments, "w*nny*y*", &power, &m, &h, &y, &weights)) return NULL;
    if (!numbers(&power, m * h) || !words(&y, m) || !words(&weights, m)) return unfit("residuals");
    const int64_t *classes = y.buf;
    for (Py_ssize_t i = 0; i < m; ++i)
        if (classes[i] < 0 || classes[i] >= h)
            return PyErr_Format(PyExc_IndexError, "class %lld of %zd", (long long)classes[i], h);
    Py_BEGIN_ALLOW_THREADS
    if (power.itemsize == sizeof(float))
        residuals_floats(power.buf, m, h, classes, weights.buf);
    else
        residuals_doubles(power.buf, m, h, classes, weights.buf);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* --- draws ------------------------------------------------------------------------------------------------------ */

/* Puts the first `count` different numbers among the rows that `words` [width] stand for into `rows`; how many there are.
 * `seen` is a table of `room` places, a power of two above twice the count; a place holds a row and one, or 0. */
static Py_ssize_t first_of(const uint64_t *words, Py_ssize_t width, int64_t size, Py_ssize_t count, int64_t *rows,
                           uint64_t *seen, uint64_t room)
{
    Py_ssize_t found = 0;
    memset(seen, 0, room * sizeof(uint64_t));
    for (Py_ssize_t k = 0; k < width && found < count; ++k) {
        const uint64_t row = (uint64_t)((double)(words[k] >> 11) * 0x1p-53 * (double)size);
        uint64_t place = (row * 0x9E3779B97F4A7C15u) >> 32 & (room - 1);
        while (seen[place] && seen[place] != row + 1) place = (place + 1) & (room - 1);
        if (!seen[place]) {
            seen[place] = row + 1;
            rows[found++] = (int64_t)row;
        }
    }
    return found;
}

static PyObject *first_distinct(PyObject *module, PyObject *arguments)
{
    BUFFER given = {0}, sizes = {0}, rows = {0}, found = {0};
    Py_ssize_t n, width, count;
    if (!PyArg_ParseTuple(arguments, "y*y*nnnw*w*", &given, &sizes, &n, &width, &count, &rows, &found)) return NULL;
    if (!words(&given, n * width) || !words(&sizes, n) || !words(&rows, n * count) || !words(&found, n))
        return unfit("first_distinct");
    uint64_t room = 16;
    while (room < 4 * (uint64_t)count) room *= 2;
    uint64_t *seen = PyMem_RawMalloc(room * sizeof(uint64_t));
    if (!seen) return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < n; ++i)
        ((int64_t *)found.buf)[i] = first_of((uint64_t *)given.buf + i * width, width, ((int64_t *)sizes.buf)[i], count,
                                             (int64_t *)rows.buf + i * count, seen, room);
    Py_END_ALLOW_THREADS
    PyMem_RawFree(seen);
    Py_RETURN_NONE;
}

/* --- discrete noise --------------------------------------------------------------------------------------------- */

/* One level of discrete Gaussian numbers by an alias table, see maths/privacy/discrete.py: of each word's half, the lowest
 * bits, by `mask`, choose a place of the table and the upper 16 are compared with the upper 16 bits of its threshold. Adds
 * the outcome, less `middle`, times 2^shift to `out`, or puts it there. Ties, which further bits must decide, are listed
 * and count as not below the threshold. How many there are. */
CLONED static Py_ssize_t add_level(const uint64_t *restrict words, Py_ssize_t n, int half, const uint32_t *restrict table,
                                   uint32_t mask, int64_t middle, int shift, int first, int64_t *restrict out,
                                   int64_t *restrict ties)
{
    Py_ssize_t found = 0;
    for (Py_ssize_t start = 0; start < n; start += TOGETHER) {
        const Py_ssize_t stop = n - start < TOGETHER ? n : start + TOGETHER;
        uint32_t any = 0;
        for (Py_ssize_t j = start; j < stop; ++j) {
            const uint32_t word = (uint32_t)(words[j] >> half);
            const uint32_t place = word & mask, entry = table[place], drawn = word >> 16, threshold = entry >> 16;
            const uint32_t chosen = drawn < threshold ? place : entry & 0xFFFF;
            any |= (uint32_t)(drawn == threshold);
            out[j] = (first ? 0 : out[j]) + (int64_t)((uint64_t)((int64_t)chosen - middle) << shift);
        }
        for (Py_ssize_t j = start; any && j < stop; ++j) {
            const uint32_t word = (uint32_t)(words[j] >> half);
            if (word >> 16 == table[word & mask] >> 16) ties[found++] = j;
        }
    }
    return found;
}

static PyObject *alias_level(PyObject *module, PyObject *arguments)
{
    BUFFER given = {0}, table = {0}, out = {0}, ties = {0};
    int upper, shift, first;
    long long middle;
    if (!PyArg_ParseTuple(arguments, "y*py*Lipw*w*", &given, &upper, &table, &middle, &shift, &first, &out, &ties))
        return NULL;
    const Py_ssize_t n = out.len / (Py_ssize_t)sizeof(int64_t), places = table.len / (Py_ssize_t)sizeof(uint32_t);
    if (!words(&given, n) || !words(&out, n) || !words(&ties, n) || places < 1 || places > 1 << 16 ||
        places & (places - 1) || shift < 0 || shift > 40)
        return unfit("alias_level");
    Py_ssize_t tied;
    Py_BEGIN_ALLOW_THREADS
    tied = add_level(given.buf, n, upper ? 32 : 0, table.buf, (uint32_t)places - 1, middle, shift, first, out.buf, ties.buf);
    Py_END_ALLOW_THREADS
    return PyLong_FromSsize_t(tied);
}

/* out = (x * factor, within +-most, 0 where it is not a number, rounded to the nearest integer or towards zero, plus noise)
 * * scale. All integers, and most, are below 2^50 in absolute value, so that doubles hold them and their sum. */
#define NOISY(NAME, T, OUT)                                                                                            \
    CLONED static void NAME(const T *restrict x, Py_ssize_t m, double factor, double most, int truncate,               \
                            const int64_t *restrict noise, double scale, OUT *restrict out)                            \
    {                                                                                                                  \
        const double constant = 6755399441055744.0; /* 1.5 * 2^52, whose bits and the integer's add up to their sum's */ \
        for (Py_ssize_t j = 0; j < m; ++j) {                                                                           \
            const double given = (double)x[j] * factor, real = given == given ? given : 0;                             \
            const double below = real > most ? most : real, steps = below < -most ? -most : below;                     \
            const Wide drawn = {.bits = ((Wide){constant}).bits + (uint64_t)noise[j]};                                 \
            out[j] = (OUT)(((truncate ? trunc(steps) : rint(steps)) + (drawn.x - constant)) * scale);                  \
        }                                                                                                              \
    }

NOISY(noisy_floats, float, float)
NOISY(noisy_floats_doubles, float, double)
NOISY(noisy_doubles_floats, double, float)
NOISY(noisy_doubles, double, double)

static PyObject *noisy(PyObject *module, PyObject *arguments)
{
    BUFFER x = {0}, noise = {0}, out = {0};
    double factor, most, scale;
    int truncate;
    if (!PyArg_ParseTuple(arguments, "y*ddpy*dw*", &x, &factor, &most, &truncate, &noise, &scale, &out)) return NULL;
    const Py_ssize_t m = noise.len / (Py_ssize_t)sizeof(int64_t);
    if (!numbers(&x, m) || !words(&noise, m) || !numbers(&out, m)) return unfit("noisy");
    const int to_float = out.itemsize == sizeof(float);
#define CALL(NAME) NAME(x.buf, m, factor, most, truncate, noise.buf, scale, out.buf)
    Py_BEGIN_ALLOW_THREADS
    if (x.itemsize == sizeof(float))
        to_float ? CALL(noisy_floats) : CALL(noisy_floats_doubles);
    else
        to_float ? CALL(noisy_doubles_floats) : CALL(noisy_doubles);
    Py_END_ALLOW_THREADS
#undef CALL
    Py_RETURN_NONE;
}

/* --- the module ------------------------------------------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"add_encoded", add_encoded, METH_VARARGS,
     "add_encoded(values, common or None, n, m, bound, constants, first, sums) -> bool"},
    {"gather", gather, METH_VARARGS, "gather(raw, at or None, scale or None, shift or None, out)"},
    {"combine", combine, METH_VARARGS, "combine(factors, arrays, width, at, out): two tuples, of two factors for an array"},
    {"row_products", row_products, METH_VARARGS, "row_products(x [n, m], y [n, m], products [n] of doubles)"},
    {"residuals", residuals, METH_VARARGS, "residuals(power [m, h], m, h, y [m], weights [m] of doubles)"},
    {"first_distinct", first_distinct, METH_VARARGS,
     "first_distinct(words [n, width], sizes [n], n, width, count, rows [n, count], found [n])"},
    {"alias_level", alias_level, METH_VARARGS,
     "alias_level(words, upper, table, middle, shift, first, out, ties) -> int: all of m numbers"},
    {"noisy", noisy, METH_VARARGS, "noisy(values, factor, most, truncate, noise, scale, out)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_loops", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__loops(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddIntConstant(module, "VERSION", VERSION)) Py_CLEAR(module);
    return module;
}
