//! Which settings stand for the system of papers 2 and for what it is compared with (M2.21).

use super::{queue, slots};

/// A system under comparison, named for what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Preset {
    /// RRC with an adaptive threshold, interference-aware placement, eviction by class.
    Adaptive,
    /// Every function keeps a slot from its first request on.
    EarlyBinding,
    /// As [`Preset::EarlyBinding`], but a model leaves at the end of its keep-alive.
    EarlyBindingKeepAlive,
    /// [`Preset::Adaptive`] with requests in order of arrival.
    ArrivalOrder,
    /// [`Preset::Adaptive`] with slots chosen by chance.
    RandomPlacement,
    /// [`Preset::Adaptive`] with eviction by least recent use alone.
    LeastRecentlyUsed,
    /// A pool whose models stay where they were first put.
    NoSwap,
    /// Order of arrival, slots by chance, eviction by least recent use.
    SimpleSwap,
}

/// For how long a model stays on its slot when nobody needs the room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stay {
    /// For ever.
    Always,
    /// As [`super::keepalive::IdleHistogram`] says.
    History,
}

/// What makes a preset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Of the queue. With [`slots::Swap::Off`] a function whose slot is taken is to be held.
    pub queue: queue::Settings,
    /// Of the slots.
    pub slots: slots::Settings,
    /// For how long a model stays.
    pub stay: Stay,
}

impl Preset {
    /// All of them.
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

    /// The settings that it stands for.
    ///
    /// [`Preset::EarlyBinding`] differs from [`Preset::NoSwap`] in what the caller says of memory, a whole
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
