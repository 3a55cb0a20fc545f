//! Tables `[slots]` and `[[slot]]`: sharing of slots.

use std::fmt;

use policy::placement::Rule as Placement;
use serde::{Serialize, Serializer};

use super::SlotKind;
use super::reader::Table;
use super::{as_quantity, integer, one_of};
use annotations::values::quantity;

/// Largest number of pods per slot that can be configured.
const SEATS_MAX: u32 = 1_024;
/// Settings of slots without a `[[slot]]` of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct SlotDefaults {
    /// Sharing mode of the slots.
    pub kind: SlotKind,
    /// Maximum number of pods per slot; `None`: the limit of MPS, [`EXCLUSIVE_SEATS`] on an exclusive slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seats: Option<u32>,
    /// Limit of the sum of requests (`sm-percent` × `quota-request`) on an mps slot, in percent of it.
    pub plan: u32,
    /// Order in which slots that have room for a pod are preferred.
    #[serde(serialize_with = "placement_name")]
    pub placement: Placement,
    /// Device memory taken by a context.
    pub context_residue: Residues,
    /// Largest sum of device memory of the models on an exclusive slot at a time, in bytes; `None`: what contexts leave.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "as_quantity"
    )]
    pub memory: Option<u64>,
}

const PLACEMENTS: [(&str, Placement); 2] = [
    ("first-fit", Placement::FirstFit),
    ("best-fit", Placement::BestFit),
];

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes it by reference"
)]
fn placement_name<S: Serializer>(rule: &Placement, to: S) -> Result<S::Ok, S::Error> {
    let name = PLACEMENTS.iter().find(|(_, own)| own == rule);
    to.serialize_str(name.map_or("", |(name, _)| name))
}

/// Default of `slots.plan`, in percent; the remainder covers the loss between tokens of different lengths (mechanisms §4.2).
pub const PLAN_PERCENT: u32 = 90;
/// Largest `slots.plan`: four times overcommitted.
const PLAN_MAX: u32 = 400;
/// Default of the maximum number of pods on an exclusive slot.
pub const EXCLUSIVE_SEATS: u32 = 64;

/// Device memory taken by a context, in bytes, by the kind of the slot; `None`: each process measures it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[expect(missing_docs, reason = "named after the kind of the slot")]
pub struct Residues {
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "as_quantity"
    )]
    pub mps: Option<u64>,
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "as_quantity"
    )]
    pub exclusive: Option<u64>,
}

impl Residues {
    /// Returns the configured memory of a context, in bytes, for a kind of slot.
    #[must_use]
    pub const fn of(self, kind: SlotKind) -> Option<u64> {
        match kind {
            SlotKind::Mps => self.mps,
            SlotKind::Exclusive => self.exclusive,
        }
    }
}

/// Selector of the slots of a `[[slot]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotMatch {
    /// The slot with this UUID.
    Uuid(String),
    /// Slots of the GPUs with these indices; with a second pattern only the MIG instances with those indices.
    Index(Numbers, Option<Numbers>),
}

/// A set of indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbers {
    /// All indices (`*`).
    All,
    /// Indices from the first to the second, both included.
    Range(u32, u32),
}

impl Numbers {
    fn parse(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Self::All);
        }
        let number = |text: &str| {
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| text.parse().ok()).flatten()
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (number(first)?, number(last)?);
        (first <= last).then_some(Self::Range(first, last))
    }

    /// Returns whether the index is in the set.
    #[must_use]
    pub fn contains(self, number: u32) -> bool {
        match self {
            Self::All => true,
            Self::Range(first, last) => (first..=last).contains(&number),
        }
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => formatter.write_str("*"),
            Self::Range(first, last) if first == last => write!(formatter, "{first}"),
            Self::Range(first, last) => write!(formatter, "{first}-{last}"),
        }
    }
}

impl SlotMatch {
    pub(super) fn parse_index(text: &str) -> Result<Self, String> {
        let (gpus, instances) = match text.split_once(':') {
            None => (text, None),
            Some((gpus, instances)) => (gpus, Some(instances)),
        };
        let parsed = Numbers::parse(gpus).and_then(|gpus| match instances {
            None => Some(Self::Index(gpus, None)),
            Some(instances) => Some(Self::Index(gpus, Some(Numbers::parse(instances)?))),
        });
        parsed.ok_or_else(|| {
            "allowed: a GPU's number, a range or *, as 0, 0-3 or *; optionally with its MIG instances, as 1:2 or 1:*"
                .to_owned()
        })
    }

    /// Returns whether this pattern selects a slot: a whole GPU, or the MIG instance with this index on it. A pattern without
    /// instances matches whole GPUs and all instances.
    #[must_use]
    pub fn matches(&self, uuid: &str, gpu: u32, instance: Option<u32>) -> bool {
        match self {
            Self::Uuid(own) => own.eq_ignore_ascii_case(uuid),
            Self::Index(gpus, instances) => {
                gpus.contains(gpu)
                    && match (instances, instance) {
                        (None, _) => true,
                        (Some(instances), Some(instance)) => instances.contains(instance),
                        (Some(_), None) => false,
                    }
            }
        }
    }
}

impl fmt::Display for SlotMatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uuid(uuid) => formatter.write_str(uuid),
            Self::Index(gpus, None) => write!(formatter, "{gpus}"),
            Self::Index(gpus, Some(instances)) => write!(formatter, "{gpus}:{instances}"),
        }
    }
}

/// Settings of one `[[slot]]` table, which override the defaults for the slots that it selects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct SlotOverride {
    /// Selector of the slots to which these overrides apply.
    #[serde(serialize_with = "as_text")]
    pub slot: SlotMatch,
    /// Sharing mode; `None`: the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<SlotKind>,
    /// Maximum number of pods per slot; `None`: the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seats: Option<u32>,
    /// Device memory taken by a context, in bytes; `None`: the default.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "as_quantity"
    )]
    pub context_residue: Option<u64>,
    /// Largest sum of device memory of models, in bytes; `None`: the default.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "as_quantity"
    )]
    pub memory: Option<u64>,
}

/// Effective settings of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotConfig {
    /// Sharing mode of the slot.
    pub kind: SlotKind,
    /// Maximum number of pods; `None`: the limit of MPS, [`EXCLUSIVE_SEATS`] on an exclusive slot.
    pub seats: Option<u32>,
    /// Device memory taken by a context, in bytes; `None`: each process measures it.
    pub context_residue: Option<u64>,
    /// Largest sum of device memory of models on an exclusive slot at a time, in bytes; `None`: what contexts leave.
    pub memory: Option<u64>,
}

impl SlotDefaults {
    pub(super) fn read(&mut self, table: Table<'_, '_>) {
        if let Some(kind) = table.value("kind", slot_kind) {
            self.kind = kind;
        }
        self.seats = table.value("seats", |text| integer(text, 1, SEATS_MAX));
        if let Some(plan) = table.value("plan", |text| integer(text, 1, PLAN_MAX)) {
            self.plan = plan;
        }
        if let Some(rule) = table.value("placement", |text| one_of(text, &PLACEMENTS)) {
            self.placement = rule;
        }
        let residue = table.table("context-residue");
        self.context_residue.mps = residue.value("mps", quantity);
        self.context_residue.exclusive = residue.value("exclusive", quantity);
        residue.end();
        self.memory = table.value("memory", quantity);
        table.end();
    }
}

impl SlotOverride {
    pub(super) fn read(table: Table<'_, '_>) -> Option<Self> {
        let uuid = table.value("uuid", |text| {
            if text.starts_with("GPU-") || text.starts_with("MIG-") {
                Ok(SlotMatch::Uuid(text.to_owned()))
            } else {
                Err(
                    "allowed: a UUID as nvidia-smi -L prints it, beginning with GPU- or MIG-"
                        .to_owned(),
                )
            }
        });
        let index = table.value("index", SlotMatch::parse_index);
        let is_named = ["uuid", "index"].map(|key| table.place(key).is_some());
        let slot = match is_named {
            [true, true] => {
                table.wrong(
                    "index",
                    "uuid is given as well; only one of the two is allowed",
                );
                None
            }
            [false, false] => {
                table.wrong("uuid", "missing: a [[slot]] needs uuid or index");
                None
            }
            _ => uuid.or(index),
        };
        let kind = table.value("kind", slot_kind);
        let seats = table.value("seats", |text| integer(text, 1, SEATS_MAX));
        let context_residue = table.value("context-residue", quantity);
        let memory = table.value("memory", quantity);
        table.end();
        Some(Self {
            slot: slot?,
            kind,
            seats,
            context_residue,
            memory,
        })
    }
}

fn slot_kind(text: &str) -> Result<SlotKind, String> {
    one_of(
        text,
        &[SlotKind::Mps, SlotKind::Exclusive].map(|kind| (kind.name(), kind)),
    )
}

fn as_text<S: Serializer>(slot: &SlotMatch, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(slot)
}
