//! Rules by their names, as experiments and users say them.

use policy::pool::preset::Preset;
use policy::pool::{queue, slots};
use serde::Deserialize;

use crate::node::{Hosting, MemoryRule, Settings, SwapTime};

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
    /// The same, but GPU after GPU is filled instead of load being spread.
    EarlyBindingInOrder,
    /// Early binding, but processes go and come by the history of idle times.
    EarlyBindingKeepAlive,
    /// The whole, but a function's process belongs to one GPU: models are swapped, calls are not redirected.
    BoundProcesses,
    /// The whole, with memory kept in blocks rather than counted (M2.10).
    Blocks,
    /// The whole, with blocks from the device and one list of those released (M2.21, `Block`).
    FreeList,
    /// The whole, with swaps group by group rather than by the fitted law (M2.6).
    Groups,
    /// The whole, without pipelining: the model first, then execution.
    WholeModels,
    /// Blocks and groups: nothing of papers 2 simplified.
    BlocksGroups,
    /// One list and groups.
    FreeListGroups,
    /// Blocks, without pipelining.
    BlocksWholeModels,
    /// One list, without pipelining.
    FreeListWholeModels,
}

impl RuleName {
    /// All.
    pub const ALL: [Self; 19] = [
        Self::Adaptive,
        Self::ArrivalOrder,
        Self::LatestStart,
        Self::RandomPlacement,
        Self::LeastRecentlyUsed,
        Self::NoSwap,
        Self::SimpleSwap,
        Self::EarlyBinding,
        Self::EarlyBindingInOrder,
        Self::EarlyBindingKeepAlive,
        Self::BoundProcesses,
        Self::Blocks,
        Self::FreeList,
        Self::Groups,
        Self::WholeModels,
        Self::BlocksGroups,
        Self::FreeListGroups,
        Self::BlocksWholeModels,
        Self::FreeListWholeModels,
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
            Self::EarlyBindingInOrder => "early-binding-in-order",
            Self::EarlyBindingKeepAlive => "early-binding-keep-alive",
            Self::BoundProcesses => "bound-processes",
            Self::Blocks => "blocks",
            Self::FreeList => "free-list",
            Self::Groups => "groups",
            Self::WholeModels => "whole-models",
            Self::BlocksGroups => "blocks-groups",
            Self::FreeListGroups => "free-list-groups",
            Self::BlocksWholeModels => "blocks-whole-models",
            Self::FreeListWholeModels => "free-list-whole-models",
        }
    }

    /// Those for which nothing but the size of a model's weights has to be known of its memory.
    pub fn without_blocks() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|rule| {
            let (memory, swap_time) = rule.memory_and_swaps();
            memory == MemoryRule::Bytes && swap_time != SwapTime::Groups
        })
    }

    /// The settings of a run by these rules.
    #[must_use]
    pub fn settings(self) -> Settings {
        let mut settings = Settings::default();
        let preset = match self {
            Self::ArrivalOrder => Preset::ArrivalOrder,
            Self::RandomPlacement => Preset::RandomPlacement,
            Self::LeastRecentlyUsed => Preset::LeastRecentlyUsed,
            Self::NoSwap => Preset::NoSwap,
            Self::SimpleSwap => Preset::SimpleSwap,
            Self::EarlyBinding | Self::EarlyBindingInOrder => Preset::EarlyBinding,
            Self::EarlyBindingKeepAlive => Preset::EarlyBindingKeepAlive,
            _ => Preset::Adaptive,
        };
        let rules = preset.rules();
        (settings.queue, settings.slots) = (rules.queue, rules.slots);
        match self {
            Self::LatestStart => settings.queue.order = queue::Order::LatestStart,
            Self::BoundProcesses => settings.slots.binding = slots::Binding::Process,
            Self::EarlyBinding => settings.hosting = Hosting::Native,
            Self::EarlyBindingInOrder => {
                settings.hosting = Hosting::Native;
                settings.filling = slots::Filling::InOrder;
            }
            Self::EarlyBindingKeepAlive => settings.hosting = Hosting::KeptAlive,
            _ => {}
        }
        (settings.memory, settings.swap_time) = self.memory_and_swaps();
        settings
    }

    /// How memory is kept and swaps take their time.
    const fn memory_and_swaps(self) -> (MemoryRule, SwapTime) {
        match self {
            Self::Blocks => (MemoryRule::Blocks, SwapTime::Fitted),
            Self::FreeList => (MemoryRule::FreeList, SwapTime::Fitted),
            Self::Groups => (MemoryRule::Bytes, SwapTime::Groups),
            Self::WholeModels => (MemoryRule::Bytes, SwapTime::Whole),
            Self::BlocksGroups => (MemoryRule::Blocks, SwapTime::Groups),
            Self::FreeListGroups => (MemoryRule::FreeList, SwapTime::Groups),
            Self::BlocksWholeModels => (MemoryRule::Blocks, SwapTime::Whole),
            Self::FreeListWholeModels => (MemoryRule::FreeList, SwapTime::Whole),
            _ => (MemoryRule::Bytes, SwapTime::Fitted),
        }
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
