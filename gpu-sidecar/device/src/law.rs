//! Scaling laws: a kernel's speed as a function of its share of a GPU's SMs (workloads §6 and §8).

use libm::{exp, log, pow};
use serde::Deserialize;

/// Speed 1 in fixed point.
pub const FULL_SPEED: u64 = 1 << 32;

/// Smallest share that a law is evaluated at, less than a thousandth of an SM.
const SHARE_MIN: f64 = 1e-6;

/// Scaling law: speed as a function of the share S of SMs, with speed 1 at all SMs. Laws read from data have their parameters in
/// range; others can be validated with [`Law::check`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Default)]
#[serde(try_from = "UncheckedLaw")]
pub enum Law {
    /// Speed proportional to the share.
    #[default]
    Linear,
    /// Saturating speed f(S) = (1 − e^(−S/S₀)) / (1 − e^(−1/S₀)), where f is 0.98 at the given share: the models of FaST-GShare.
    Saturating {
        /// Share at which the speed is 0.98, above 0, at most 1.
        at: f64,
    },
    /// Speed proportional to the share up to a knee: f(S) = min(1, S / knee).
    Knee {
        /// Share above which further SMs have no effect, above 0, at most 1.
        at: f64,
    },
    /// Amdahl's law: a part of the work takes the same time with any number of SMs.
    Amdahl {
        /// Serial part of the time with all SMs, from 0 to 1.
        serial: f64,
    },
    /// Speed as a power of the share: f(S) = S^β.
    Power {
        /// Exponent β, from 0 to 1.
        exponent: f64,
    },
}

/// Law as read from data, before validation.
#[derive(Deserialize)]
#[serde(rename = "Law", rename_all = "kebab-case", deny_unknown_fields)]
enum UncheckedLaw {
    Linear,
    Saturating { at: f64 },
    Knee { at: f64 },
    Amdahl { serial: f64 },
    Power { exponent: f64 },
}

impl TryFrom<UncheckedLaw> for Law {
    type Error = LawError;

    fn try_from(law: UncheckedLaw) -> Result<Self, LawError> {
        let law = match law {
            UncheckedLaw::Linear => Self::Linear,
            UncheckedLaw::Saturating { at } => Self::Saturating { at },
            UncheckedLaw::Knee { at } => Self::Knee { at },
            UncheckedLaw::Amdahl { serial } => Self::Amdahl { serial },
            UncheckedLaw::Power { exponent } => Self::Power { exponent },
        };
        law.check()
    }
}

/// A parameter of a law is out of range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{law}: {name} = {value}: allowed: {allowed}")]
pub struct LawError {
    law: &'static str,
    name: &'static str,
    value: f64,
    allowed: &'static str,
}

impl Law {
    /// Returns the law if its parameters are in range.
    ///
    /// # Errors
    ///
    /// Returns the first parameter that is out of range.
    pub fn check(self) -> Result<Self, LawError> {
        let (law, name, value, allowed, is_good) = match self {
            Self::Linear => return Ok(self),
            Self::Saturating { at } => (
                "saturating",
                "at",
                at,
                "above 0, at most 1",
                at > 0.0 && at <= 1.0,
            ),
            Self::Knee { at } => (
                "knee",
                "at",
                at,
                "above 0, at most 1",
                at > 0.0 && at <= 1.0,
            ),
            Self::Amdahl { serial } => (
                "amdahl",
                "serial",
                serial,
                "0 to 1",
                (0.0..=1.0).contains(&serial),
            ),
            Self::Power { exponent } => (
                "power",
                "exponent",
                exponent,
                "0 to 1",
                (0.0..=1.0).contains(&exponent),
            ),
        };
        if is_good {
            Ok(self)
        } else {
            Err(LawError {
                law,
                name,
                value,
                allowed,
            })
        }
    }

    /// Returns the speed with `sms` of `of` SMs in fixed point, where [`FULL_SPEED`] is 1. Returns 0 without SMs.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "from 0 to 2^32, which a double holds exactly"
    )]
    pub fn speed(self, sms: u32, of: u32) -> u64 {
        if sms == 0 || of == 0 {
            return 0;
        }
        if sms >= of {
            return FULL_SPEED;
        }
        let share = f64::from(sms) / f64::from(of);
        let speed = match self {
            Self::Linear => share,
            Self::Saturating { at } => {
                let scale = -log(50.0) / at.max(SHARE_MIN);
                (1.0 - exp(share * scale)) / (1.0 - exp(scale))
            }
            Self::Knee { at } => share / at.max(SHARE_MIN),
            Self::Amdahl { serial } => 1.0 / (serial + (1.0 - serial) / share),
            Self::Power { exponent } => pow(share, exponent),
        };
        // Parameters out of range, which `check` reports, may give NaN or infinity; the speed stays in range.
        let speed = if speed.is_finite() { speed } else { 1.0 };
        ((speed.clamp(0.0, 1.0) * FULL_SPEED as f64) as u64).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speed(law: Law, percent: u32) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "at most 2^32")]
        let speed = law.speed(percent, 100) as f64;
        speed / 4_294_967_296.0
    }

    #[test]
    fn speeds_match_the_printed_values_of_workloads_section_8() {
        let resnet = Law::Saturating { at: 0.24 };
        let gnmt = Law::Saturating { at: 0.80 };
        let bert = Law::Knee { at: 0.33 };
        for (law, values) in [
            (resnet, [0.62, 0.86, 0.98, 1.00]),
            (gnmt, [0.26, 0.45, 0.70, 0.92]),
            (bert, [0.18, 0.36, 0.73, 1.00]),
        ] {
            for (percent, value) in [6, 12, 24, 50].into_iter().zip(values) {
                assert!(
                    (speed(law, percent) - value).abs() < 0.006,
                    "{law:?} at {percent}"
                );
            }
        }
    }

    #[test]
    fn slowdowns_match_those_of_workloads_section_6() {
        let slowdown = |law: Law, gpcs| {
            4_294_967_296.0 / {
                #[expect(clippy::cast_precision_loss, reason = "at most 2^32")]
                let speed = law.speed(gpcs, 7) as f64;
                speed
            }
        };
        let srgan = Law::Power { exponent: 0.598 };
        let amdahl = Law::Amdahl { serial: 0.633 };
        for (gpcs, power, linear) in [
            (1, 3.2, 3.2),
            (2, 2.11, 1.92),
            (3, 1.66, 1.49),
            (4, 1.40, 1.28),
        ] {
            assert!((slowdown(srgan, gpcs) - power).abs() < 0.01, "{gpcs}");
            assert!((slowdown(amdahl, gpcs) - linear).abs() < 0.01, "{gpcs}");
        }
    }

    #[test]
    fn more_sms_never_slow_a_kernel_down() {
        for law in [
            Law::Linear,
            Law::Saturating { at: 0.1 },
            Law::Knee { at: 0.5 },
            Law::Amdahl { serial: 0.3 },
            Law::Power { exponent: 0.4 },
        ] {
            let speeds: Vec<_> = (0..=132).map(|sms| law.speed(sms, 132)).collect();
            assert!(speeds.is_sorted(), "{law:?}");
            assert_eq!((speeds[0], speeds[132]), (0, FULL_SPEED), "{law:?}");
        }
    }

    #[test]
    fn a_parameter_out_of_range_is_reported_by_name() {
        let error = Law::Knee { at: 1.5 }.check().unwrap_err();
        assert_eq!(
            error.to_string(),
            "knee: at = 1.5: allowed: above 0, at most 1"
        );
        assert!(Law::Saturating { at: f64::NAN }.check().is_err());
    }

    #[test]
    fn a_law_from_data_is_validated() {
        #[derive(Debug, Deserialize)]
        struct Data {
            law: Law,
        }
        let read = |text: &str| toml::from_str::<Data>(text).map(|data| data.law);
        assert_eq!(read("law = \"linear\"").unwrap(), Law::Linear);
        let power = Law::Power { exponent: 0.5 };
        assert_eq!(read("law = { power = { exponent = 0.5 } }").unwrap(), power);
        let error = read("law = { power = { exponent = 1.5 } }").unwrap_err();
        assert!(
            error
                .to_string()
                .contains("power: exponent = 1.5: allowed: 0 to 1"),
            "{error}"
        );
    }
}
