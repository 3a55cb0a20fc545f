//! Which models are slowed down by a swap over the host path (M2.14, mechanisms §2.4).
//!
//! A model is heavy if its first inference while it is swapped in, pipelined and alone on its path, takes at least 1.3
//! times an inference with the model resident. To leave its class, the ratio must fall below 1.25 or reach 1.35, and it
//! is evaluated again only after the inference time or the size has changed by a fifth, so noise causes no changes. A
//! model of which nothing is known is heavy.
//!
//! # Examples
//!
//! ```
//! use policy::Span;
//! use policy::pool::heaviness::{Class, Heaviness, Measurements};
//!
//! let measurements = |swapped| Measurements {
//!     resident: Span::from_millis(10),
//!     swapped: Span::from_millis(swapped),
//!     bytes: 1 << 30,
//! };
//! let mut model = Heaviness::unknown();
//! assert_eq!(model.class(), Class::Heavy);
//! assert_eq!(model.measured(measurements(11)), Some(Class::Light));
//! // The resident time and the size have not changed, so the class stays.
//! assert_eq!(model.measured(measurements(20)), None);
//! ```

use crate::Span;

/// Effect of a swap on a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Class {
    /// The inference hides the swap.
    Light,
    /// A swap slows the inference down.
    #[default]
    Heavy,
}

/// Measurements of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measurements {
    /// Inference time with the model resident.
    pub resident: Span,
    /// Inference time while the model is swapped in from the host, pipelined and alone on its path.
    pub swapped: Span,
    /// Size of the model, in bytes.
    pub bytes: u64,
}

/// Ratio of the inference time with a swap to that without, in percent, from which an unclassified model becomes heavy.
const RATIO: u64 = 130;
/// Ratio below which a heavy model becomes light, in percent.
const LEAVES_HEAVY_BELOW: u64 = 125;
/// Ratio from which a light model becomes heavy, in percent.
const LEAVES_LIGHT_FROM: u64 = 135;
/// A resident inference time or size that has changed by less than one part in this many leaves the class as it is.
const MOVED_PART: u64 = 5;

/// Class of one model, updated as measurements arrive.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heaviness {
    class: Class,
    /// Measurements on which the class is based.
    classified: Option<Measurements>,
}

impl Heaviness {
    /// Creates the class of a model of which nothing is known.
    #[must_use]
    pub const fn unknown() -> Self {
        Self {
            class: Class::Heavy,
            classified: None,
        }
    }

    /// Returns the current class of the model.
    #[must_use]
    pub const fn class(&self) -> Class {
        self.class
    }

    /// Updates the class by the current measurements, which are best estimates rather than single samples, and returns
    /// the class if it changed. Measurements without a resident inference time are ignored.
    pub fn measured(&mut self, measured: Measurements) -> Option<Class> {
        if measured.resident == Span::ZERO {
            return None;
        }
        let limit = match self.classified {
            None => RATIO,
            Some(before) if !moved(before, measured) => return None,
            Some(_) => match self.class {
                Class::Heavy => LEAVES_HEAVY_BELOW,
                Class::Light => LEAVES_LIGHT_FROM,
            },
        };
        self.classified = Some(measured);
        let slowed = u128::from(measured.swapped.0) * 100
            >= u128::from(measured.resident.0) * u128::from(limit);
        let class = if slowed { Class::Heavy } else { Class::Light };
        (std::mem::replace(&mut self.class, class) != class).then_some(class)
    }
}

/// Returns the class of a model that was never swapped: heavy if transferring its bytes takes longer than its
/// inference. `bandwidth` is that of the host path in bytes per second; zero means unknown, and heavy.
#[must_use]
pub fn by_transfer(resident: Span, bytes: u64, bandwidth: u64) -> Class {
    let transfer = u128::from(bytes) * 1_000_000_000;
    if transfer > u128::from(resident.0) * u128::from(bandwidth) {
        Class::Heavy
    } else {
        Class::Light
    }
}

fn moved(before: Measurements, now: Measurements) -> bool {
    let by_a_part = |before: u64, now: u64| {
        let moved = u128::from(before.abs_diff(now)) * u128::from(MOVED_PART);
        moved >= u128::from(before.max(1))
    };
    by_a_part(before.resident.0, now.resident.0) || by_a_part(before.bytes, now.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(resident: u64, swapped: u64, bytes: u64) -> Measurements {
        Measurements {
            resident: Span::from_millis(resident),
            swapped: Span::from_millis(swapped),
            bytes,
        }
    }

    /// Torpor Table 4: resident and swapped inference times in milliseconds, fp32 bytes from public parameter counts,
    /// class.
    const TABLE_4: [(u64, u64, u64, Class); 8] = [
        (25, 27, 56_596_000, Class::Light),
        (28, 30, 80_056_000, Class::Light),
        (14, 17, 108_644_000, Class::Light),
        (12, 13, 21_156_000, Class::Light),
        (9, 13, 102_228_000, Class::Heavy),
        (14, 22, 178_196_000, Class::Heavy),
        (17, 25, 240_772_000, Class::Heavy),
        (43, 144, 1_340_000_000, Class::Heavy),
    ];

    #[test]
    fn both_rules_classify_the_models_of_table_4_as_the_paper_does() {
        for (resident, swapped, bytes, class) in TABLE_4 {
            let mut heaviness = Heaviness::unknown();
            heaviness.measured(ms(resident, swapped, bytes));
            assert_eq!(heaviness.class(), class, "{resident} ms");
            let by_bytes = by_transfer(Span::from_millis(resident), bytes, 9_460_000_000);
            assert_eq!(by_bytes, class, "{resident} ms");
        }
    }

    #[test]
    fn an_unknown_model_is_heavy() {
        let mut unknown = Heaviness::default();
        assert_eq!(unknown.class(), Class::Heavy);
        assert_eq!(unknown.measured(ms(0, 50, 1)), None);
        assert_eq!(unknown.class(), Class::Heavy);
        assert_eq!(by_transfer(Span::from_millis(1_000), 1, 0), Class::Heavy);
    }

    #[test]
    fn the_class_changes_only_past_the_far_threshold() {
        let mut model = Heaviness::unknown();
        assert_eq!(model.measured(ms(100, 129, 1_000)), Some(Class::Light));
        assert_eq!(model.measured(ms(200, 268, 1_000)), None);
        assert_eq!(model.measured(ms(100, 135, 1_000)), Some(Class::Heavy));
        assert_eq!(model.measured(ms(200, 250, 1_000)), None);
        assert_eq!(model.measured(ms(100, 124, 1_000)), Some(Class::Light));
    }

    #[test]
    fn changes_by_less_than_a_fifth_are_ignored() {
        let mut model = Heaviness::unknown();
        assert_eq!(model.measured(ms(100, 110, 1_000)), Some(Class::Light));
        assert_eq!(model.measured(ms(119, 400, 1_199)), None);
        assert_eq!(model.measured(ms(100, 400, 1_200)), Some(Class::Heavy));
        assert_eq!(model.measured(ms(81, 81, 1_200)), None);
        assert_eq!(model.measured(ms(80, 80, 1_200)), Some(Class::Light));
    }
}
