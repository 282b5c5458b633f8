// Floating-point numbers of sixteen bits, computed with as floats and rounded to nearest, ties to even.
#pragma once
#include "cuda_on_cpu.h"

namespace emulation {

// P significant bits, of which the first is implied, and 16 - P bits of exponent.
template <int P>
struct Narrow {
    static constexpr int BIAS = (1 << (15 - P)) - 1, INFINITE = ((1 << (16 - P)) - 1) << (P - 1);
    unsigned short bits;

    Narrow() = default;
    template <class A, class = std::enable_if_t<std::is_arithmetic_v<A>>>
    Narrow(A given) {
        double value = given, size = std::fabs(value);
        bits = std::signbit(value) ? 0x8000 : 0;
        if (std::isnan(value)) bits = 0x7fff;
        else if (std::isinf(value)) bits |= INFINITE;
        else if (size > 0) {
            int exponent;
            std::frexp(size, &exponent);
            exponent = max(exponent, 2 - BIAS);
            double last = std::nearbyint(std::ldexp(size, P - exponent));  // in units of the last bit
            bits |= int(min(last + std::ldexp(double(exponent + BIAS - 2), P - 1), double(INFINITE)));
        }
    }

    operator float() const {
        int exponent = (bits & 0x7fff) >> (P - 1), rest = bits & ((1 << (P - 1)) - 1);
        float size = exponent == INFINITE >> (P - 1) ? (rest ? NAN : INFINITY)
                     : std::ldexp(float(exponent ? rest + (1 << (P - 1)) : rest), max(exponent, 1) - BIAS - (P - 1));
        return bits & 0x8000 ? -size : size;
    }

    friend Narrow operator+(Narrow a, Narrow b) { return float(a) + float(b); }
    friend Narrow operator-(Narrow a, Narrow b) { return float(a) - float(b); }
    friend Narrow operator*(Narrow a, Narrow b) { return float(a) * float(b); }
    friend Narrow operator/(Narrow a, Narrow b) { return float(a) / float(b); }
    friend Narrow operator-(Narrow a) { return -float(a); }
    friend bool operator<(Narrow a, Narrow b) { return float(a) < float(b); }
    friend bool operator>(Narrow a, Narrow b) { return float(a) > float(b); }
    friend bool operator<=(Narrow a, Narrow b) { return float(a) <= float(b); }
    friend bool operator>=(Narrow a, Narrow b) { return float(a) >= float(b); }
    friend bool operator==(Narrow a, Narrow b) { return float(a) == float(b); }
    friend bool operator!=(Narrow a, Narrow b) { return float(a) != float(b); }
    Narrow& operator+=(Narrow b) { return *this = *this + b; }
    Narrow& operator-=(Narrow b) { return *this = *this - b; }
    Narrow& operator*=(Narrow b) { return *this = *this * b; }
    Narrow& operator/=(Narrow b) { return *this = *this / b; }
};

}  // namespace emulation

#define EMULATION_NARROW(type)                                                              \
    inline type __hadd(type a, type b) { return a + b; }                                    \
    inline type __hsub(type a, type b) { return a - b; }                                    \
    inline type __hmul(type a, type b) { return a * b; }                                    \
    inline type __hdiv(type a, type b) { return a / b; }                                    \
    inline type __hneg(type a) { return -a; }                                               \
    inline type __hmax(type a, type b) { return std::fmax(float(a), float(b)); }            \
    inline type __hmin(type a, type b) { return std::fmin(float(a), float(b)); }            \
    inline bool __hgt(type a, type b) { return a > b; }                                     \
    inline bool __hlt(type a, type b) { return a < b; }                                     \
    inline type __hfma(type a, type b, type c) { return std::fma(double(a), double(b), double(c)); }
