//! Named sets of rules, as experiments and users refer to them.

use policy::pool::preset::Preset;
use policy::pool::{queue, slots};
use serde::Deserialize;

use crate::node::{Hosting, MemoryRule, Settings, SwapTime};

/// Rules by which a pool is run: the whole policy, or with one part replaced (M2.21).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RuleName {
    /// All mechanisms of mechanisms §2.
    Adaptive,
    /// All mechanisms, and models of waiting requests are loaded beside what computes.
    LoadsAhead,
    /// Requests in the order of two groups as printed (M2.13).
    Paper,
    /// Requests in order of arrival.
    ArrivalOrder,
    /// Requests ordered by latest start, without groups.
    LatestStart,
    /// Placement on any free GPU, with a load from the host unless the model is resident.
    RandomPlacement,
    /// Eviction of the least recently used model.
    LeastRecentlyUsed,
    /// Models stay on the GPU on which they were first placed.
    NoSwap,
    /// Order of arrival, random placement, and eviction of the least recently used model.
    SimpleSwap,
    /// A process for each function, bound to one GPU, as far as memory suffices.
    EarlyBinding,
    /// As [`EarlyBinding`](Self::EarlyBinding), but GPUs are filled one after another instead of spreading load.
    EarlyBindingInOrder,
    /// Early binding, with processes started and stopped by the history of idle times.
    EarlyBindingKeepAlive,
    /// The whole policy, with each function's process bound to one GPU: models are swapped, calls are not redirected.
    BoundProcesses,
    /// The whole policy, with memory managed in blocks instead of counted (M2.10).
    Blocks,
    /// The whole policy, with blocks from the device and one list of released blocks (M2.21, `Block`).
    FreeList,
    /// The whole policy, with swaps in groups instead of by the fitted law (M2.6).
    Groups,
    /// The whole policy without pipelining: the model is loaded first, then the request executed.
    WholeModels,
    /// Blocks and groups: no simplification of mechanisms §2.
    BlocksGroups,
    /// One list of released blocks, and swaps in groups.
    FreeListGroups,
    /// Memory in blocks, without pipelining.
    BlocksWholeModels,
    /// One list of released blocks, without pipelining.
    FreeListWholeModels,
}

impl RuleName {
    /// All rules in the order in which they are listed to users.
    pub const ALL: [Self; 21] = [
        Self::Adaptive,
        Self::LoadsAhead,
        Self::Paper,
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

    /// Returns the name used in files and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Adaptive => "adaptive",
            Self::LoadsAhead => "loads-ahead",
            Self::Paper => "paper",
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

    /// Returns the rules for which the only information needed about a model's memory is the size of its weights.
    pub fn without_blocks() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|rule| {
            let (memory, swap_time) = rule.memory_and_swaps();
            memory == MemoryRule::Bytes && swap_time != SwapTime::Groups
        })
    }

    /// Returns the settings of a run with these rules.
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
            Self::LoadsAhead => settings.loads_ahead = true,
            Self::Paper => settings.queue = queue::Settings::as_printed(),
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

    /// Returns the management of memory and the law of swap times.
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
    fn every_rule_is_parsed_by_name_and_differs_from_the_others() {
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
