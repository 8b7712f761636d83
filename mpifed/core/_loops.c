/* Loops that read and write memory once where calls of NumPy would several times; see loops.py, which checks what is
 * passed here, and says what each function does. Every number is rounded as NumPy rounds it, operation by operation:
 * the bits are the same. So this file must be compiled without contraction of a * b + c, and without -ffast-math.
 */
#ifdef __FAST_MATH__
#error "-ffast-math would change the bits"
#endif

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <stdint.h>

#define VERSION 10 /* of the functions' arguments; loops.py asks for the same */
#define TOGETHER 1024 /* numbers that pass through the nearest cache at once */
#define MOST_TERMS 8 /* of a combination */
#define AHEAD 4 /* rows that memory is asked for before they are read */

#ifdef __GNUC__
#define ALIKE static inline __attribute__((always_inline))
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define ALIKE static inline
#define PREFETCH(address) (void)(address)
#endif

/* The same function for two sets of instructions; which is run is settled when the module is loaded. */
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

typedef union {
    float x;
    uint32_t bits;
} Narrow;

ALIKE uint64_t wide_bits(double x)
{
    Wide number;
    number.x = x;
    return number.bits;
}

ALIKE uint32_t narrow_bits(float x)
{
    Narrow number;
    number.x = x;
    return number.bits;
}

ALIKE double wide_of(uint64_t bits)
{
    Wide number;
    number.bits = bits;
    return number.x;
}

ALIKE Py_ssize_t smaller(Py_ssize_t a, Py_ssize_t b) { return a < b ? a : b; }

/* --- sums of integers ------------------------------------------------------------------------------------------- */

/* The largest T that is not above the bound. */
static float float_bound(double bound)
{
    const float found = (float)bound;
    return (double)found > bound ? nextafterf(found, 0) : found;
}

/* Whether x is above the bound in absolute value, or is not a number; of the width of T, for loops over vectors. */
#define OUTSIDE_float(x, bound) (int32_t)!(fabsf(x) <= (bound))
#define OUTSIDE_double(x, bound) (int64_t)!(fabs(x) <= (bound))
#define FLAG_float int32_t
#define FLAG_double int64_t

/* factor * common [m] from `start` on, or zeros, which change no integer: what is added to every row. */
#define SHIFTS(T)                                                                                                      \
    T shift[TOGETHER];                                                                                                 \
    if (common)                                                                                                        \
        for (Py_ssize_t j = start; j < stop; ++j) shift[j - start] = factor * common[j];                               \
    else                                                                                                               \
        for (Py_ssize_t j = 0; j < stop - start; ++j) shift[j] = 0;

/* Adds the rows of x [n, m] + factor * common, one limb each, and `offset` once; `first` of several additions, it
 * overwrites what was there. Four rows are read side by side, which memory serves better than one after the other. 0: a
 * number is outside the bound, and what is in `sums` is no sum. */
#define ADD_ENCODED(NAME, T, REAL, WORD, BITS)                                                                         \
    CLONED static int NAME(const T *restrict x, Py_ssize_t n, Py_ssize_t m, const T *restrict common, T factor,        \
                           T bound, REAL constant, int first, WORD offset, WORD *restrict sums)                        \
    {                                                                                                                  \
        const Py_ssize_t odd = n % 4;                                                                                  \
        for (Py_ssize_t start = 0; start < m; start += TOGETHER) {                                                     \
            const Py_ssize_t stop = smaller(start + TOGETHER, m), count = stop - start;                                \
            FLAG_##T outside = 0;                                                                                      \
            const WORD kept = first ? 0 : (WORD)-1;                                                                    \
            WORD *restrict sum = sums + start;                                                                         \
            SHIFTS(T)                                                                                                  \
            if (odd == 0)                                                                                              \
                for (Py_ssize_t j = 0; j < count; ++j) sum[j] = (sum[j] & kept) + offset;                              \
            else if (first)                                                                                            \
                for (Py_ssize_t j = 0; j < count; ++j) {                                                               \
                    const T value = x[start + j] + shift[j];                                                           \
                    outside |= OUTSIDE_##T(value, bound);                                                              \
                    sum[j] = offset + BITS((REAL)value + constant);                                                    \
                }                                                                                                      \
            else                                                                                                       \
                for (Py_ssize_t j = 0; j < count; ++j) {                                                               \
                    const T value = x[start + j] + shift[j];                                                           \
                    outside |= OUTSIDE_##T(value, bound);                                                              \
                    sum[j] += offset + BITS((REAL)value + constant);                                                   \
                }                                                                                                      \
            for (Py_ssize_t i = odd ? 1 : 0; i < odd; ++i) {                                                           \
                const T *restrict row = x + i * m + start;                                                             \
                for (Py_ssize_t j = 0; j < count; ++j) {                                                               \
                    const T value = row[j] + shift[j];                                                                 \
                    outside |= OUTSIDE_##T(value, bound);                                                              \
                    sum[j] += BITS((REAL)value + constant);                                                            \
                }                                                                                                      \
            }                                                                                                          \
            for (Py_ssize_t i = odd; i < n; i += 4) {                                                                  \
                const T *restrict a = x + i * m + start, *restrict b = a + m, *restrict c = b + m, *restrict d = c + m;\
                for (Py_ssize_t j = 0; j < count; ++j) {                                                               \
                    const T p = a[j] + shift[j], q = b[j] + shift[j], r = c[j] + shift[j], s = d[j] + shift[j];        \
                    outside |= OUTSIDE_##T(p, bound) | OUTSIDE_##T(q, bound) | OUTSIDE_##T(r, bound) |                 \
                               OUTSIDE_##T(s, bound);                                                                  \
                    sum[j] += BITS((REAL)p + constant) + BITS((REAL)q + constant) + BITS((REAL)r + constant) +         \
                              BITS((REAL)s + constant);                                                                \
                }                                                                                                      \
            }                                                                                                          \
            if (outside) return 0;                                                                                     \
        }                                                                                                              \
        return 1;                                                                                                      \
    }

ADD_ENCODED(add_floats_64, float, double, uint64_t, wide_bits)
ADD_ENCODED(add_doubles_64, double, double, uint64_t, wide_bits)
ADD_ENCODED(add_floats_32, float, float, uint32_t, narrow_bits)

/* The same in two limbs: a coarse multiple, and what remains. */
#define ADD_IN_TWO(NAME, T)                                                                                            \
    CLONED static int NAME(const T *restrict x, Py_ssize_t n, Py_ssize_t m, const T *restrict common, T factor,        \
                           T bound, const double *constants, int first, const uint64_t *offsets,                       \
                           uint64_t *restrict high, uint64_t *restrict low)                                            \
    {                                                                                                                  \
        const double coarse = constants[0], fine = constants[1];                                                       \
        for (Py_ssize_t start = 0; start < m; start += TOGETHER) {                                                     \
            const Py_ssize_t stop = smaller(start + TOGETHER, m);                                                      \
            FLAG_##T outside = 0;                                                                                      \
            SHIFTS(T)                                                                                                  \
            for (Py_ssize_t i = 0; i < n; ++i) {                                                                       \
                const T *restrict row = x + i * m;                                                                     \
                const uint64_t kept = first && !i ? 0 : UINT64_MAX;                                                    \
                const uint64_t once_high = i ? 0 : offsets[0], once_low = i ? 0 : offsets[1];                          \
                for (Py_ssize_t j = start; j < stop; ++j) {                                                            \
                    const T value = row[j] + shift[j - start];                                                         \
                    const double shifted = (double)value + coarse;                                                     \
                    const double rest = (double)value - (shifted - coarse);                                            \
                    outside |= OUTSIDE_##T(value, bound);                                                              \
                    high[j] = (high[j] & kept) + once_high + wide_bits(shifted);                                       \
                    low[j] = (low[j] & kept) + once_low + wide_bits(rest + fine);                                      \
                }                                                                                                      \
            }                                                                                                          \
            if (outside) return 0;                                                                                     \
        }                                                                                                              \
        return 1;                                                                                                      \
    }

ADD_IN_TWO(add_floats_in_two, float)
ADD_IN_TWO(add_doubles_in_two, double)

PyDoc_STRVAR(add_encoded_doc, "add_encoded(values, is_float, n, m, common or None, factor, bound, constants, first, offsets, "
                              "sums, is_32) -> bool");

static PyObject *add_encoded(PyObject *module, PyObject *arguments)
{
    Py_buffer values, common, sums;
    Py_ssize_t n, m;
    double factor, bound, constants[2];
    int is_float, first, is_32, within = 1;
    long long offsets[2];
    if (!PyArg_ParseTuple(arguments, "y*pnnz*dd(dd)p(LL)w*p", &values, &is_float, &n, &m, &common, &factor, &bound,
                          constants, constants + 1, &first, offsets, offsets + 1, &sums, &is_32))
        return NULL;
    const int two = constants[1] != 0;
    const Py_ssize_t item = is_float ? sizeof(float) : sizeof(double);
    const Py_ssize_t word = is_32 ? sizeof(uint32_t) : sizeof(uint64_t);
    if (values.len != n * m * item || sums.len != m * word * (1 + two) || (is_32 && (two || !is_float)) ||
        (common.buf && common.len != m * item))
        PyErr_SetString(PyExc_ValueError, "add_encoded: sizes do not fit together");
    else {
        Py_BEGIN_ALLOW_THREADS
        const uint64_t begin[2] = {(uint64_t)offsets[0], (uint64_t)offsets[1]};
        uint64_t *high = sums.buf, *low = high + (two ? m : 0);
        if (is_float) {
            const float most = float_bound(bound), times = (float)factor;
            if (is_32)
                within = add_floats_32(values.buf, n, m, common.buf, times, most, (float)constants[0], first,
                                       (uint32_t)begin[0], sums.buf);
            else if (two)
                within = add_floats_in_two(values.buf, n, m, common.buf, times, most, constants, first, begin, high, low);
            else
                within = add_floats_64(values.buf, n, m, common.buf, times, most, constants[0], first, begin[0], high);
        } else {
            if (two)
                within = add_doubles_in_two(values.buf, n, m, common.buf, factor, bound, constants, first, begin, high, low);
            else
                within = add_doubles_64(values.buf, n, m, common.buf, factor, bound, constants[0], first, begin[0], high);
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&values);
    PyBuffer_Release(&common);
    PyBuffer_Release(&sums);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(within);
}

/* --- rows ------------------------------------------------------------------------------------------------------- */

/* outs[k][i] = columns of raw[at[i]], one part after the other, * scale + shift; each of the two is absent, one number, or
 * one a column; `at` may be absent too, and the only part be raw then. */
typedef struct {
    void *start; /* of the first row */
    Py_ssize_t first, width, step; /* its first column in raw, how many it has, numbers from one of its rows to the next */
} Part;

#define GATHER(NAME, RAW, T)                                                                                           \
    CLONED static void NAME(const RAW *raw, Py_ssize_t p, Py_ssize_t apart, const int64_t *at, Py_ssize_t b,           \
                            const T *restrict scale, int scales, const T *restrict shift, int shifts,              \
                            const Part *parts, Py_ssize_t n)                                                           \
    {                                                                                                                  \
        for (Py_ssize_t i = 0; i < b; ++i) {                                                                           \
            const RAW *row = raw + (at ? at[i] : i) * apart;                                                           \
            if (at && i + AHEAD < b) {                                                                                 \
                const char *next = (const char *)(raw + at[i + AHEAD] * apart);                                        \
                for (Py_ssize_t k = 0; k < p * (Py_ssize_t)sizeof(RAW); k += 64) PREFETCH(next + k);                   \
            }                                                                                                          \
            for (const Part *part = parts; part < parts + n; ++part) {                                                 \
                const RAW *from = row + part->first;                                                                   \
                T *to = (T *)part->start + i * part->step;                                                             \
                const Py_ssize_t width = part->width;                                                                  \
                if (scales == 1 && !shifts) {                                                                          \
                    const T factor = *scale;                                                                           \
                    for (Py_ssize_t j = 0; j < width; ++j) to[j] = (T)from[j] * factor;                                \
                    continue;                                                                                          \
                }                                                                                                      \
                for (Py_ssize_t j = 0; j < width; ++j) to[j] = (T)from[j];                                             \
                if (scales == 1)                                                                                       \
                    for (Py_ssize_t j = 0; j < width; ++j) to[j] *= *scale;                                            \
                else if (scales)                                                                                       \
                    for (Py_ssize_t j = 0; j < width; ++j) to[j] *= scale[part->first + j];                            \
                if (shifts == 1)                                                                                       \
                    for (Py_ssize_t j = 0; j < width; ++j) to[j] += *shift;                                            \
                else if (shifts)                                                                                       \
                    for (Py_ssize_t j = 0; j < width; ++j) to[j] += shift[part->first + j];                            \
            }                                                                                                          \
        }                                                                                                              \
    }

GATHER(gather_bytes_floats, uint8_t, float)
GATHER(gather_bytes_doubles, uint8_t, double)
GATHER(gather_floats, float, float)
GATHER(gather_floats_doubles, float, double)
GATHER(gather_doubles_floats, double, float)
GATHER(gather_doubles, double, double)

/* Whether a buffer has two axes, and each row of it its numbers one after the other. */
static int in_rows(const Py_buffer *buffer)
{
    return buffer->ndim == 2 && buffer->strides[0] % buffer->itemsize == 0 &&
           (buffer->shape[1] <= 1 || buffer->strides[1] == buffer->itemsize);
}

PyDoc_STRVAR(gather_doc, "gather(raw, kind, at or None, scale or None, shift or None, is_float, outs); kind: B, f or d");

static PyObject *gather(PyObject *module, PyObject *arguments)
{
    Py_buffer raw, at, scale, shift, *outs = NULL;
    PyObject *values, *given;
    Part *parts = NULL;
    Py_ssize_t there = 0, columns = 0;
    int kind, is_float;
    if (!PyArg_ParseTuple(arguments, "OCz*z*z*pO!", &values, &kind, &at, &scale, &shift, &is_float, &PyTuple_Type, &given))
        return NULL;
    const Py_ssize_t item = is_float ? sizeof(float) : sizeof(double), n = PyTuple_GET_SIZE(given);
    const Py_ssize_t size = kind == 'B' ? 1 : kind == 'f' ? sizeof(float) : sizeof(double);
    const Py_ssize_t scales = scale.buf ? scale.len / item : 0, shifts = shift.buf ? shift.len / item : 0;
    const int64_t *numbers = at.buf;
    if (PyObject_GetBuffer(values, &raw, PyBUF_STRIDES) == 0) {
        const int fits = in_rows(&raw) && raw.itemsize == size;
        const Py_ssize_t rows = fits ? raw.shape[0] : 0, p = fits ? raw.shape[1] : 0;
        const Py_ssize_t b = numbers ? at.len / (Py_ssize_t)sizeof(int64_t) : rows;
        if (!(outs = PyMem_Calloc(n + 1, sizeof(Py_buffer))) || !(parts = PyMem_Calloc(n + 1, sizeof(Part)))) PyErr_NoMemory();
        while (!PyErr_Occurred() && there < n) {
            Py_buffer *out = outs + there;
            if (PyObject_GetBuffer(PyTuple_GET_ITEM(given, there), out, PyBUF_STRIDES | PyBUF_WRITABLE)) break;
            Part *part = parts + there++;
            if (!in_rows(out) || out->itemsize != item || out->shape[0] != b) {
                PyErr_SetString(PyExc_ValueError, "gather: sizes do not fit together");
                break;
            }
            *part = (Part){out->buf, columns, out->shape[1], out->strides[0] / item};
            columns += part->width;
        }
        if (PyErr_Occurred())
            ;
        else if (!fits || columns != p || (scales > 1 && scales != p) || (shifts > 1 && shifts != p))
            PyErr_SetString(PyExc_ValueError, "gather: sizes do not fit together");
        else if (numbers && p)
            for (Py_ssize_t i = 0; i < b; ++i)
                if (numbers[i] < 0 || numbers[i] >= rows) {
                    PyErr_Format(PyExc_IndexError, "row %lld of %zd", (long long)numbers[i], rows);
                    break;
                }
        if (!PyErr_Occurred()) {
            Py_BEGIN_ALLOW_THREADS
#define CALL(NAME) NAME(raw.buf, p, raw.strides[0] / size, numbers, b, scale.buf, (int)(scales > 1 ? 2 : scales), shift.buf, (int)(shifts > 1 ? 2 : shifts), parts, n)
            if (is_float)
                kind == 'B' ? CALL(gather_bytes_floats) : kind == 'f' ? CALL(gather_floats) : CALL(gather_doubles_floats);
            else
                kind == 'B' ? CALL(gather_bytes_doubles) : kind == 'f' ? CALL(gather_floats_doubles) : CALL(gather_doubles);
#undef CALL
            Py_END_ALLOW_THREADS
        }
        while (there) PyBuffer_Release(outs + --there);
        PyBuffer_Release(&raw);
    }
    PyMem_Free(outs);
    PyMem_Free(parts);
    PyBuffer_Release(&at);
    PyBuffer_Release(&scale);
    PyBuffer_Release(&shift);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

/* --- linear combinations ---------------------------------------------------------------------------------------- */

/* out = factors[0] * x[0] + factors[1] * x[1] + ..., from left to right; out may be one of x. Two or three terms are read
 * side by side, which memory serves better than one after the other. NAME does so for each row of out [rows, width], whose
 * columns from `at` on have factors of their own, behind the others; x[k] begins apart[k] numbers later in the next row. */
#define COMBINE(NAME, T)                                                                                               \
    CLONED static void NAME##_row(int terms, const T *factors, const T *const *x, Py_ssize_t m, T *out)                \
    {                                                                                                                  \
        const T a = factors[0], b = factors[terms > 1], c = factors[terms > 2 ? 2 : 0];                                \
        const T *first = x[0], *second = x[terms > 1], *third = x[terms > 2 ? 2 : 0];                                  \
        if (terms == 1)                                                                                                \
            for (Py_ssize_t j = 0; j < m; ++j) out[j] = a * first[j];                                                  \
        else if (terms == 2)                                                                                           \
            for (Py_ssize_t j = 0; j < m; ++j) out[j] = a * first[j] + b * second[j];                                  \
        else if (terms == 3)                                                                                           \
            for (Py_ssize_t j = 0; j < m; ++j) out[j] = a * first[j] + b * second[j] + c * third[j];                   \
        else {                                                                                                         \
            T sum[TOGETHER];                                                                                           \
            for (Py_ssize_t start = 0; start < m; start += TOGETHER) {                                                 \
                const Py_ssize_t count = smaller(TOGETHER, m - start);                                                 \
                for (Py_ssize_t j = 0; j < count; ++j) {                                                               \
                    const Py_ssize_t at = start + j;                                                                   \
                    sum[j] = a * first[at] + b * second[at] + c * third[at];                                           \
                }                                                                                                      \
                for (int k = 3; k < terms; ++k)                                                                        \
                    for (Py_ssize_t j = 0; j < count; ++j) sum[j] += factors[k] * x[k][start + j];                     \
                for (Py_ssize_t j = 0; j < count; ++j) out[start + j] = sum[j];                                        \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    static void NAME(int terms, const double *given, const Py_buffer *x, const Py_ssize_t *apart, Py_ssize_t rows,     \
                     Py_ssize_t width, Py_ssize_t at, T *out)                                                          \
    {                                                                                                                  \
        T factors[2 * MOST_TERMS];                                                                                     \
        const T *row[MOST_TERMS];                                                                                      \
        for (int k = 0; k < 2 * terms; ++k) factors[k] = (T)given[k];                                                  \
        for (Py_ssize_t i = 0; i < rows; ++i)                                                                          \
            for (Py_ssize_t start = 0, stop = at, part = 0; part < 2; ++part, start = at, stop = width) {              \
                for (int k = 0; k < terms; ++k) row[k] = (const T *)x[k].buf + i * apart[k] + start;                   \
                NAME##_row(terms, factors + part * terms, row, stop - start, out + i * width + start);                 \
            }                                                                                                          \
    }

COMBINE(combine_floats, float)
COMBINE(combine_doubles, double)

PyDoc_STRVAR(combine_doc, "combine(factors, arrays, is_float, width, at, out), with two tuples: twice as many factors as arrays");

static PyObject *combine(PyObject *module, PyObject *arguments)
{
    Py_buffer out, parts[MOST_TERMS];
    PyObject *given, *arrays;
    double factors[2 * MOST_TERMS];
    Py_ssize_t width, at, apart[MOST_TERMS];
    int is_float;
    if (!PyArg_ParseTuple(arguments, "O!O!pnnw*", &PyTuple_Type, &given, &PyTuple_Type, &arrays, &is_float, &width, &at, &out))
        return NULL;
    const Py_ssize_t terms = PyTuple_GET_SIZE(arrays), row = width * (is_float ? sizeof(float) : sizeof(double));
    Py_ssize_t there = 0;
    if (terms < 1 || terms > MOST_TERMS || PyTuple_GET_SIZE(given) != 2 * terms)
        PyErr_Format(PyExc_ValueError, "combine: %zd factors, %zd arrays", PyTuple_GET_SIZE(given), terms);
    else if (at < 0 || at > width || (row ? out.len % row : out.len))
        PyErr_SetString(PyExc_ValueError, "combine: sizes do not fit together");
    for (Py_ssize_t k = 0; !PyErr_Occurred() && k < 2 * terms; ++k) factors[k] = PyFloat_AsDouble(PyTuple_GET_ITEM(given, k));
    while (!PyErr_Occurred() && there < terms) {
        if (PyObject_GetBuffer(PyTuple_GET_ITEM(arrays, there), &parts[there], PyBUF_SIMPLE)) break;
        const Py_ssize_t size = parts[there].len;
        apart[there++] = size == row ? 0 : width;
        if (size != row && size != out.len) PyErr_SetString(PyExc_ValueError, "combine: sizes do not fit together");
    }
    if (!PyErr_Occurred() && row) {
        Py_BEGIN_ALLOW_THREADS
        if (is_float)
            combine_floats((int)terms, factors, parts, apart, out.len / row, width, at, out.buf);
        else
            combine_doubles((int)terms, factors, parts, apart, out.len / row, width, at, out.buf);
        Py_END_ALLOW_THREADS
    }
    while (there) PyBuffer_Release(&parts[--there]);
    PyBuffer_Release(&out);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

/* --- losses --------------------------------------------------------------------------------------------------- */

/* power [m, h] <- (power / its row's sum - 1 of the class y) * weight; the sums, each from left to right. */
#define RESIDUALS(NAME, T)                                                                                             \
    static void NAME(T *restrict power, Py_ssize_t m, Py_ssize_t h, const int64_t *restrict y,                         \
                     const double *restrict weights, T *restrict total)                                                \
    {                                                                                                                  \
        for (Py_ssize_t i = 0; i < m; ++i, power += h) {                                                               \
            const T weight = (T)weights[i];                                                                            \
            T sum = power[0];                                                                                          \
            for (Py_ssize_t k = 1; k < h; ++k) sum += power[k];                                                        \
            for (Py_ssize_t k = 0; k < h; ++k) power[k] /= sum;                                                        \
            power[y[i]] -= 1;                                                                                          \
            for (Py_ssize_t k = 0; k < h; ++k) power[k] *= weight;                                                     \
            total[i] = sum;                                                                                            \
        }                                                                                                              \
    }

RESIDUALS(residuals_floats, float)
RESIDUALS(residuals_doubles, double)

PyDoc_STRVAR(residuals_doc, "residuals(power [m, h], is_float, y [m], weights [m] of doubles, total [m])");

static PyObject *residuals(PyObject *module, PyObject *arguments)
{
    Py_buffer power, y, weights, total;
    int is_float;
    if (!PyArg_ParseTuple(arguments, "w*py*y*w*", &power, &is_float, &y, &weights, &total)) return NULL;
    const Py_ssize_t item = is_float ? sizeof(float) : sizeof(double), m = total.len / item;
    const Py_ssize_t h = m ? power.len / item / m : 0;
    const int64_t *classes = y.buf;
    if (power.len != m * h * item || (m && !h) || y.len != m * (Py_ssize_t)sizeof(int64_t) ||
        weights.len != m * (Py_ssize_t)sizeof(double))
        PyErr_SetString(PyExc_ValueError, "residuals: sizes do not fit together");
    else
        for (Py_ssize_t i = 0; i < m; ++i)
            if (classes[i] < 0 || classes[i] >= h) {
                PyErr_Format(PyExc_IndexError, "class %lld of %zd", (long long)classes[i], h);
                break;
            }
    if (!PyErr_Occurred()) {
        Py_BEGIN_ALLOW_THREADS
        if (is_float)
            residuals_floats(power.buf, m, h, classes, weights.buf, total.buf);
        else
            residuals_doubles(power.buf, m, h, classes, weights.buf, total.buf);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&power);
    PyBuffer_Release(&y);
    PyBuffer_Release(&weights);
    PyBuffer_Release(&total);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

/* --- draws ------------------------------------------------------------------------------------------------------ */

/* Puts the first `count` different numbers among the rows that `words` [width] stand for into `rows`; how many there are.
 * `seen` is a table of `room` places, a power of two above twice the count; a place holds a row and one, or 0. */
static Py_ssize_t first_of(const uint64_t *words, Py_ssize_t width, int64_t size, Py_ssize_t count, int64_t *rows,
                           uint64_t *seen, uint64_t room)
{
    Py_ssize_t found = 0;
    for (uint64_t i = 0; i < room; ++i) seen[i] = 0;
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

PyDoc_STRVAR(first_distinct_doc, "first_distinct(words [n, width], width, sizes [n], count, rows [n, count], found [n])");

static PyObject *first_distinct(PyObject *module, PyObject *arguments)
{
    Py_buffer words, sizes, rows, found;
    Py_ssize_t width, count;
    if (!PyArg_ParseTuple(arguments, "y*ny*nw*w*", &words, &width, &sizes, &count, &rows, &found)) return NULL;
    const Py_ssize_t n = sizes.len / (Py_ssize_t)sizeof(int64_t), item = sizeof(int64_t);
    uint64_t room = 16, *seen = NULL;
    while (room < 4 * (uint64_t)count) room *= 2;
    if (words.len != n * width * item || rows.len != n * count * item || found.len != n * item)
        PyErr_SetString(PyExc_ValueError, "first_distinct: sizes do not fit together");
    else if ((seen = PyMem_RawMalloc(room * sizeof(uint64_t))) == NULL)
        PyErr_NoMemory();
    else {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < n; ++i)
            ((int64_t *)found.buf)[i] = first_of((uint64_t *)words.buf + i * width, width, ((int64_t *)sizes.buf)[i], count,
                                                 (int64_t *)rows.buf + i * count, seen, room);
        Py_END_ALLOW_THREADS
    }
    PyMem_RawFree(seen);
    PyBuffer_Release(&words);
    PyBuffer_Release(&sizes);
    PyBuffer_Release(&rows);
    PyBuffer_Release(&found);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

/* --- discrete noise --------------------------------------------------------------------------------------------- */

/* One level of discrete Gaussian numbers by an alias table, see maths/privacy/discrete.py: of each word's half, the lowest
 * `bits` choose a place of the table and the upper 16 are compared with the upper 16 bits of its threshold. Adds the
 * outcome, less `middle`, times 2^shift to `out`, or puts it there. Ties, which further bits must decide, are listed in
 * `ties` and count as not below the threshold. How many there are; beyond `room` they are not listed. */
CLONED static Py_ssize_t alias_level(const uint64_t *restrict words, Py_ssize_t n, int upper, const uint32_t *restrict table,
                                     int bits, int64_t middle, int shift, int first, int64_t *restrict out,
                                     int64_t *restrict ties, Py_ssize_t room)
{
    const uint32_t mask = ((uint32_t)1 << bits) - 1;
    const int64_t kept = first ? 0 : -1;
    Py_ssize_t found = 0;
    for (Py_ssize_t start = 0; start < n; start += TOGETHER) {
        const Py_ssize_t stop = smaller(start + TOGETHER, n);
        uint32_t any = 0;
        for (Py_ssize_t j = start; j < stop; ++j) {
            const uint32_t word = (uint32_t)(upper ? words[j] >> 32 : words[j]);
            const uint32_t place = word & mask, entry = table[place], drawn = word >> 16, threshold = entry >> 16;
            const uint32_t chosen = drawn < threshold ? place : entry & 0xFFFF;
            any |= (uint32_t)(drawn == threshold);
            out[j] = (out[j] & kept) + (int64_t)((uint64_t)((int64_t)chosen - middle) << shift);
        }
        if (!any) continue;
        for (Py_ssize_t j = start; j < stop; ++j) {
            const uint32_t word = (uint32_t)(upper ? words[j] >> 32 : words[j]);
            if (word >> 16 != table[word & mask] >> 16) continue;
            if (found < room) ties[found] = j;
            ++found;
        }
    }
    return found;
}

PyDoc_STRVAR(alias_doc, "alias_level(words, upper, table, bits, middle, shift, first, out, ties) -> int");

static PyObject *alias(PyObject *module, PyObject *arguments)
{
    Py_buffer words, table, out, ties;
    int upper, bits, shift, first;
    long long middle;
    Py_ssize_t found = 0;
    if (!PyArg_ParseTuple(arguments, "y*py*iLipw*w*", &words, &upper, &table, &bits, &middle, &shift, &first, &out, &ties))
        return NULL;
    if (bits < 0 || bits > 16 || shift < 0 || shift > 40 || words.len != out.len || words.len % 8 ||
        table.len != (Py_ssize_t)sizeof(uint32_t) << bits)
        PyErr_SetString(PyExc_ValueError, "alias_level: sizes do not fit together");
    else {
        Py_BEGIN_ALLOW_THREADS
        found = alias_level(words.buf, words.len / 8, upper, table.buf, bits, middle, shift, first, out.buf, ties.buf,
                            ties.len / 8);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&words);
    PyBuffer_Release(&table);
    PyBuffer_Release(&out);
    PyBuffer_Release(&ties);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(found);
}

/* 0 where it is not a number, and within +-most. */
ALIKE double within(double steps, double most)
{
    steps = steps == steps ? steps : 0;
    steps = steps > most ? most : steps;
    steps = steps < -most ? -most : steps;
    return steps;
}

/* out = (x * factor, `within` +-most, rounded to the nearest integer or towards zero, plus noise) * scale. All integers,
 * and most, are below 2^50 in absolute value, so that doubles hold them and their sum; the constant rounds as rint does,
 * and the sum's bits are those of the integer, see maths/fixedpoint.py. */
#define NOISY(NAME, T, OUT)                                                                                            \
    CLONED static void NAME(const T *restrict x, Py_ssize_t m, double factor, double most, int truncate,               \
                            const int64_t *restrict noise, double scale, OUT *restrict out)                            \
    {                                                                                                                  \
        const double constant = 6755399441055744.0; /* 1.5 * 2^52 */                                                   \
        const uint64_t bits = 0x4338000000000000u;                                                                     \
        if (!truncate) {                                                                                               \
            for (Py_ssize_t j = 0; j < m; ++j) {                                                                       \
                const double nearest = within((double)x[j] * factor, most) + constant;                                 \
                out[j] = (OUT)((wide_of(wide_bits(nearest) + (uint64_t)noise[j]) - constant) * scale);                 \
            }                                                                                                          \
            return;                                                                                                    \
        }                                                                                                              \
        for (Py_ssize_t j = 0; j < m; ++j) {                                                                           \
            const double steps = within((double)x[j] * factor, most);                                                  \
            double nearest = (steps + constant) - constant;                                                            \
            const double back = fabs(nearest) > fabs(steps) ? 1 : 0;                                                   \
            nearest = nearest - (nearest < 0 ? -back : back);                                                          \
            const double drawn = wide_of((uint64_t)noise[j] + bits) - constant;                                        \
            out[j] = (OUT)((nearest + drawn) * scale);                                                                 \
        }                                                                                                              \
    }

NOISY(noisy_floats, float, float)
NOISY(noisy_floats_doubles, float, double)
NOISY(noisy_doubles_floats, double, float)
NOISY(noisy_doubles, double, double)

PyDoc_STRVAR(noisy_doc, "noisy(values, is_float, factor, most, truncate, noise, scale, to_float, out)");

static PyObject *noisy(PyObject *module, PyObject *arguments)
{
    Py_buffer x, noise, out;
    double factor, most, scale;
    int is_float, truncate, to_float;
    if (!PyArg_ParseTuple(arguments, "y*pddpy*dpw*", &x, &is_float, &factor, &most, &truncate, &noise, &scale, &to_float,
                          &out))
        return NULL;
    const Py_ssize_t m = noise.len / 8;
    if (x.len != m * (Py_ssize_t)(is_float ? sizeof(float) : sizeof(double)) ||
        out.len != m * (Py_ssize_t)(to_float ? sizeof(float) : sizeof(double)))
        PyErr_SetString(PyExc_ValueError, "noisy: sizes do not fit together");
    else {
        Py_BEGIN_ALLOW_THREADS
#define CALL(NAME) NAME(x.buf, m, factor, most, truncate, noise.buf, scale, out.buf)
        if (is_float)
            to_float ? CALL(noisy_floats) : CALL(noisy_floats_doubles);
        else
            to_float ? CALL(noisy_doubles_floats) : CALL(noisy_doubles);
#undef CALL
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&x);
    PyBuffer_Release(&noise);
    PyBuffer_Release(&out);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

/* --- the module ------------------------------------------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"alias_level", alias, METH_VARARGS, alias_doc},
    {"noisy", noisy, METH_VARARGS, noisy_doc},
    {"residuals", residuals, METH_VARARGS, residuals_doc},
    {"add_encoded", add_encoded, METH_VARARGS, add_encoded_doc},
    {"gather", gather, METH_VARARGS, gather_doc},
    {"combine", combine, METH_VARARGS, combine_doc},
    {"first_distinct", first_distinct, METH_VARARGS, first_distinct_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_loops", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__loops(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddIntConstant(module, "VERSION", VERSION)) Py_CLEAR(module);
    return module;
}
