//! Exponential and logarithm from additions, multiplications and divisions alone, which are the same to the last
//! bit on every machine; those of the system's library are not.

const LN_2: f64 = std::f64::consts::LN_2;

/// The natural logarithm of a positive, normal number.
pub(crate) fn ln(x: f64) -> f64 {
    // x = m · 2^exponent with m from 2/3 to 4/3, where the series converges fast.
    let bits = x.to_bits();
    let mut exponent = i32::try_from(bits >> 52 & 0x7ff).unwrap_or(0) - 1023;
    let mut m = f64::from_bits(bits & 0x000f_ffff_ffff_ffff | 1023 << 52);
    if m > 4.0 / 3.0 {
        m /= 2.0;
        exponent += 1;
    }
    // ln m = 2 artanh((m − 1) / (m + 1)).
    let z = (m - 1.0) / (m + 1.0);
    let square = z * z;
    let mut power = z;
    let mut sum = 0.0;
    for n in 0..20_u32 {
        sum += power / f64::from(2 * n + 1);
        power *= square;
    }
    2.0 * sum + f64::from(exponent) * LN_2
}

/// e to the `x`; 0 below −700, and no more than at 700.
pub(crate) fn exp(x: f64) -> f64 {
    if x < -700.0 {
        return 0.0;
    }
    let n = (x.min(700.0) / LN_2).round();
    let r = x.min(700.0) - n * LN_2;
    let mut term = 1.0;
    let mut sum = 1.0;
    for k in 1..22_u32 {
        term *= r / f64::from(k);
        sum += term;
    }
    // 2^n, by halving or doubling as often as that takes.
    let (mut factor, mut left) = (1.0, n.abs());
    while left >= 1.0 {
        factor *= if n < 0.0 { 0.5 } else { 2.0 };
        left -= 1.0;
    }
    sum * factor
}

/// `base` to the `exponent`, for a positive base.
pub(crate) fn pow(base: f64, exponent: f64) -> f64 {
    exp(exponent * ln(base))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_agree_with_the_library() {
        for n in 1..2_000_u32 {
            let x = f64::from(n) / 37.0;
            assert!((ln(x) - x.ln()).abs() < 1e-14, "ln {x}");
            let y = x - 27.0;
            assert!((exp(y) / y.exp() - 1.0).abs() < 1e-13, "exp {y}");
        }
        assert!((pow(7.0, 0.598) - 7_f64.powf(0.598)).abs() < 1e-13);
    }
}
