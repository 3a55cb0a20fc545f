//! Which models are slowed by a swap over the host path (M2.14, papers 2.4).
//!
//! Heavy: the first inference while the model swaps in, pipelined and alone on its path, takes at least 1.3 times one
//! with the model resident. To leave a class the ratio must pass 1.25 or 1.35, and it is looked at again only when
//! inference time or bytes have moved by a fifth, so that noise moves nobody. Unknown: heavy.

use crate::Span;

/// What a swap does to a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Class {
    /// Its inference hides the swap.
    Light,
    /// A swap slows its inference.
    #[default]
    Heavy,
}

/// What was measured of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Inference with the model resident.
    pub resident: Span,
    /// Inference with the model coming from the host, pipelined, alone on its path.
    pub swapped: Span,
    /// Its size.
    pub bytes: u64,
}

/// Of first classification, in percent.
const RATIO: u64 = 130;
const LEAVES_HEAVY_BELOW: u64 = 125;
const LEAVES_LIGHT_FROM: u64 = 135;
/// Less of a move than a part of so many is noise.
const MOVED_PART: u64 = 5;

/// The class of one model, kept up as measurements come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heaviness {
    class: Class,
    /// What the class was last taken from.
    classified: Option<Measured>,
}

impl Heaviness {
    /// A model of which nothing is known.
    #[must_use]
    pub const fn unknown() -> Self {
        Self {
            class: Class::Heavy,
            classified: None,
        }
    }

    /// Its class.
    #[must_use]
    pub const fn class(&self) -> Class {
        self.class
    }

    /// The present measurements, best estimates rather than single samples; says the new class if it changed. Ones
    /// without an inference time say nothing.
    pub fn measured(&mut self, measured: Measured) -> Option<Class> {
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

/// The class of a model that was never swapped: heavy if its bytes take longer to come than its inference takes.
/// `bandwidth`: of the host path, in bytes per second. Zero: unknown.
#[must_use]
pub fn by_transfer(resident: Span, bytes: u64, bandwidth: u64) -> Class {
    let transfer = u128::from(bytes) * 1_000_000_000;
    if transfer > u128::from(resident.0) * u128::from(bandwidth) {
        Class::Heavy
    } else {
        Class::Light
    }
}

fn moved(before: Measured, now: Measured) -> bool {
    let by_a_part = |before: u64, now: u64| {
        let moved = u128::from(before.abs_diff(now)) * u128::from(MOVED_PART);
        moved >= u128::from(before.max(1))
    };
    by_a_part(before.resident.0, now.resident.0) || by_a_part(before.bytes, now.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(resident: u64, swapped: u64, bytes: u64) -> Measured {
        Measured {
            resident: Span::from_millis(resident),
            swapped: Span::from_millis(swapped),
            bytes,
        }
    }

    /// Torpor Table 4: resident and swapped in milliseconds, fp32 bytes from public parameter counts.
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
    fn both_rules_class_the_models_of_table_4_as_the_paper_does() {
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
    fn the_class_changes_only_past_the_far_edge() {
        let mut model = Heaviness::unknown();
        assert_eq!(model.measured(ms(100, 129, 1_000)), Some(Class::Light));
        assert_eq!(model.measured(ms(200, 268, 1_000)), None);
        assert_eq!(model.measured(ms(100, 135, 1_000)), Some(Class::Heavy));
        assert_eq!(model.measured(ms(200, 250, 1_000)), None);
        assert_eq!(model.measured(ms(100, 124, 1_000)), Some(Class::Light));
    }

    #[test]
    fn what_moves_by_less_than_a_fifth_is_not_looked_at() {
        let mut model = Heaviness::unknown();
        assert_eq!(model.measured(ms(100, 110, 1_000)), Some(Class::Light));
        assert_eq!(model.measured(ms(119, 400, 1_199)), None);
        assert_eq!(model.measured(ms(100, 400, 1_200)), Some(Class::Heavy));
        assert_eq!(model.measured(ms(81, 81, 1_200)), None);
        assert_eq!(model.measured(ms(80, 80, 1_200)), Some(Class::Light));
    }
}
