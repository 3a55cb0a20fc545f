//! Presets: the settings of the system of mechanisms §2, and of those that it is compared with (M2.21).
//!
//! # Examples
//!
//! ```
//! use policy::pool::preset::{Preset, Stay};
//! use policy::pool::slots::Swap;
//!
//! let rules = Preset::EarlyBindingKeepAlive.rules();
//! assert_eq!(rules.slots.swap, Swap::Off);
//! assert_eq!(rules.stay, Stay::History);
//! ```

use super::{queue, slots};

/// System under comparison, named for its behavior.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Preset {
    /// RRC with an adaptive threshold, interference-aware placement, and eviction by class.
    Adaptive,
    /// Every function keeps a slot from its first request on.
    EarlyBinding,
    /// Like [`Preset::EarlyBinding`], but a model is unloaded at the end of its keep-alive.
    EarlyBindingKeepAlive,
    /// Like [`Preset::Adaptive`], with requests in order of arrival.
    ArrivalOrder,
    /// Like [`Preset::Adaptive`], with randomly chosen slots.
    RandomPlacement,
    /// Like [`Preset::Adaptive`], with eviction by least recent use alone.
    LeastRecentlyUsed,
    /// Models stay where they were first placed.
    NoSwap,
    /// Order of arrival, randomly chosen slots, and eviction by least recent use.
    SimpleSwap,
}

/// Time for which a model stays on its slot while its room is not needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stay {
    /// The model stays for ever.
    Always,
    /// The model stays as long as [`super::keepalive::IdleHistogram`] determines.
    History,
}

/// Settings that make up a preset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Settings of the queue. With [`slots::Swap::Off`] the caller must hold a function while its slot is taken.
    pub queue: queue::Settings,
    /// Settings of the slots.
    pub slots: slots::Settings,
    /// Time for which a model stays loaded.
    pub stay: Stay,
}

impl Preset {
    /// All presets, in the order of their declaration.
    pub const ALL: [Self; 8] = [
        Self::Adaptive,
        Self::EarlyBinding,
        Self::EarlyBindingKeepAlive,
        Self::ArrivalOrder,
        Self::RandomPlacement,
        Self::LeastRecentlyUsed,
        Self::NoSwap,
        Self::SimpleSwap,
    ];

    /// Returns the settings of this preset.
    ///
    /// [`Preset::EarlyBinding`] differs from [`Preset::NoSwap`] in the memory that the caller states, which is a whole
    /// process for each function instead of a model, and in its queue: each function is served alone, so there is
    /// nothing to order but arrivals.
    #[must_use]
    pub fn rules(self) -> Rules {
        let mut rules = Rules {
            queue: queue::Settings::default(),
            slots: slots::Settings::default(),
            stay: Stay::Always,
        };
        match self {
            Self::Adaptive => {}
            Self::EarlyBinding | Self::EarlyBindingKeepAlive => {
                rules.queue.order = queue::Order::Arrival;
                rules.slots.swap = slots::Swap::Off;
                if self == Self::EarlyBindingKeepAlive {
                    rules.stay = Stay::History;
                }
            }
            Self::ArrivalOrder => rules.queue.order = queue::Order::Arrival,
            Self::RandomPlacement => rules.slots.placement = slots::Placement::Random,
            Self::LeastRecentlyUsed => rules.slots.eviction = slots::Eviction::LeastRecentlyUsed,
            Self::NoSwap => rules.slots.swap = slots::Swap::Off,
            Self::SimpleSwap => {
                rules.queue.order = queue::Order::Arrival;
                rules.slots.placement = slots::Placement::Random;
                rules.slots.eviction = slots::Eviction::LeastRecentlyUsed;
            }
        }
        rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_presets_are_the_same() {
        for (at, one) in Preset::ALL.iter().enumerate() {
            for other in &Preset::ALL[..at] {
                assert_ne!(one.rules(), other.rules(), "{one:?} and {other:?}");
            }
        }
    }

    #[test]
    fn simple_swap_is_arrival_order_random_placement_and_least_recent_use_together() {
        let all = Preset::SimpleSwap.rules();
        assert_eq!(all.queue, Preset::ArrivalOrder.rules().queue);
        assert_eq!(
            all.slots.placement,
            Preset::RandomPlacement.rules().slots.placement
        );
        assert_eq!(
            all.slots.eviction,
            Preset::LeastRecentlyUsed.rules().slots.eviction
        );
        assert_eq!(all.slots.swap, slots::Swap::On);
    }
}
