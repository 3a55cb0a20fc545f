//! Rules by their names, as experiments and users say them.

use policy::pool::preset::Preset;
use policy::pool::{queue, slots};
use serde::Deserialize;

use crate::node::{Hosting, Settings};

/// By what rules a pool is run: the whole, or with one thing replaced (M2.21).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RuleName {
    /// The whole of papers 2.
    Adaptive,
    /// First come, first served.
    ArrivalOrder,
    /// By latest start, without groups.
    LatestStart,
    /// Any free GPU, and from the host unless the model is on it.
    RandomPlacement,
    /// Eviction by last use alone.
    LeastRecentlyUsed,
    /// A model stays where it was first put.
    NoSwap,
    /// Arrival order, random placement, eviction by last use.
    SimpleSwap,
    /// A process for each function, on one GPU for good, as far as memory goes.
    EarlyBinding,
    /// The same, but processes go and come by the history of idle times.
    KeepAlive,
    /// The whole, but a function's process belongs to one GPU: models are swapped, calls are not redirected.
    BoundProcesses,
}

impl RuleName {
    /// All.
    pub const ALL: [Self; 10] = [
        Self::Adaptive,
        Self::ArrivalOrder,
        Self::LatestStart,
        Self::RandomPlacement,
        Self::LeastRecentlyUsed,
        Self::NoSwap,
        Self::SimpleSwap,
        Self::EarlyBinding,
        Self::KeepAlive,
        Self::BoundProcesses,
    ];

    /// As it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Adaptive => "adaptive",
            Self::ArrivalOrder => "arrival-order",
            Self::LatestStart => "latest-start",
            Self::RandomPlacement => "random-placement",
            Self::LeastRecentlyUsed => "least-recently-used",
            Self::NoSwap => "no-swap",
            Self::SimpleSwap => "simple-swap",
            Self::EarlyBinding => "early-binding",
            Self::KeepAlive => "keep-alive",
            Self::BoundProcesses => "bound-processes",
        }
    }

    /// The settings of a run by these rules.
    #[must_use]
    pub fn settings(self) -> Settings {
        let mut settings = Settings::default();
        let preset = match self {
            Self::Adaptive | Self::LatestStart | Self::BoundProcesses => Preset::Adaptive,
            Self::ArrivalOrder => Preset::ArrivalOrder,
            Self::RandomPlacement => Preset::RandomPlacement,
            Self::LeastRecentlyUsed => Preset::LeastRecentlyUsed,
            Self::NoSwap => Preset::NoSwap,
            Self::SimpleSwap => Preset::SimpleSwap,
            Self::EarlyBinding => Preset::EarlyBinding,
            Self::KeepAlive => Preset::EarlyBindingKeepAlive,
        };
        let rules = preset.rules();
        (settings.queue, settings.slots) = (rules.queue, rules.slots);
        match self {
            Self::LatestStart => settings.queue.order = queue::Order::LatestStart,
            Self::BoundProcesses => settings.slots.binding = slots::Binding::Process,
            Self::EarlyBinding => settings.hosting = Hosting::Native,
            Self::KeepAlive => settings.hosting = Hosting::KeptAlive,
            _ => {}
        }
        settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_read_by_its_name_and_differs_from_the_others() {
        #[derive(Deserialize)]
        struct Line {
            rule: RuleName,
        }
        for (at, rule) in RuleName::ALL.into_iter().enumerate() {
            let line: Line = toml::from_str(&format!("rule = {:?}", rule.name())).unwrap();
            assert_eq!(line.rule, rule);
            for other in &RuleName::ALL[..at] {
                assert_ne!(rule.settings(), other.settings(), "{rule:?} {other:?}");
            }
        }
    }
}
