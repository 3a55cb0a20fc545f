//! Rules of leases: that of the node by default, and those that it is compared with (M2.21).

use super::Settings;
use crate::pool::preset::Preset;
use crate::pool::queue;
use crate::pool::slots::Eviction;

/// Rule by which leases are granted and models leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Rule {
    /// The order of [`queue::Settings::default`]; a head may wait for a slot that has its model, or have it loaded ahead; a recalled function yields its slot to a
    /// late head where it can wait; models leave by class, those last which could hardly return within their requests' objective.
    #[default]
    Weir,
    /// Two groups of functions (M2.13) and Algorithm 1 (M2.15) as printed, with nothing loaded ahead.
    Paper,
    /// Heads in order of arrival.
    ArrivalOrder,
    /// Any free slot on which the function has an instance, wherever its model is.
    RandomPlacement,
    /// Models leave by least recent use alone.
    LeastRecentlyUsed,
    /// Models return only once their slots are free.
    NothingAhead,
}

impl Rule {
    /// All rules, in the order of their declaration.
    pub const ALL: [Self; 6] = [
        Self::Weir,
        Self::Paper,
        Self::ArrivalOrder,
        Self::RandomPlacement,
        Self::LeastRecentlyUsed,
        Self::NothingAhead,
    ];

    /// Returns the name of the rule in configuration files and results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Weir => "weir",
            Self::Paper => "paper",
            Self::ArrivalOrder => "fifo",
            Self::RandomPlacement => "random",
            Self::LeastRecentlyUsed => "lru",
            Self::NothingAhead => "no-ahead",
        }
    }

    /// Returns the rule of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rule| rule.name() == name)
    }

    /// Returns the settings of leases by this rule. `streams`: instances compute while their models return.
    #[must_use]
    pub fn settings(self, streams: bool) -> Settings {
        let preset = match self {
            Self::Weir | Self::Paper | Self::NothingAhead => Preset::Adaptive,
            Self::ArrivalOrder => Preset::ArrivalOrder,
            Self::RandomPlacement => Preset::RandomPlacement,
            Self::LeastRecentlyUsed => Preset::LeastRecentlyUsed,
        };
        let rules = preset.rules();
        let mut slots = rules.slots;
        if self != Self::Paper && slots.eviction == Eviction::Classes {
            slots.eviction = Eviction::Objectives;
        }
        Settings {
            queue: match self {
                Self::Paper => queue::Settings::as_printed(),
                _ => rules.queue,
            },
            slots,
            streams,
            loads_ahead: !matches!(self, Self::Paper | Self::NothingAhead),
            begins_late: self != Self::Paper,
            loads_at_once: matches!(self, Self::Paper | Self::RandomPlacement),
            yields: !matches!(self, Self::Paper | Self::ArrivalOrder),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_has_a_name_and_settings_of_its_own() {
        for (at, rule) in Rule::ALL.into_iter().enumerate() {
            assert_eq!(Rule::named(rule.name()), Some(rule));
            for other in &Rule::ALL[..at] {
                assert_ne!(
                    rule.settings(true),
                    other.settings(true),
                    "{rule:?} {other:?}"
                );
            }
        }
        assert_eq!(Rule::named("adaptive"), None);
        let default = Settings {
            streams: true,
            ..Settings::default()
        };
        assert_eq!(Rule::default().settings(true), default);
    }
}
