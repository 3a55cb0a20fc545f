//! `[slots]` and `[[slot]]`: how slots are shared.

use std::fmt;

use serde::{Serialize, Serializer};

use super::reader::Table;
use super::{as_quantity, integer, one_of};
use crate::state::SlotKind;
use annotations::values::quantity;

/// Pods on a slot, at most: what a file can ask for.
const SEATS_MAX: u32 = 1_024;
/// What holds for slots unless a `[[slot]]` says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct SlotDefaults {
    /// How they are shared.
    pub kind: SlotKind,
    /// Pods on a slot; `None`: what MPS allows, [`EXCLUSIVE_SEATS`] on an exclusive slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seats: Option<u32>,
    /// Requests (`sm-percent` × `quota-request`) that an mps slot takes, in per cent of it.
    pub plan: u32,
    /// Device memory that stays with a context.
    pub context_residue: Residues,
}

/// What is planned for unless the file says otherwise: the rest is what tokens of different lengths leave over
/// (papers: §4.2).
pub const PLAN_PERCENT: u32 = 90;
/// More would be promised than there is four times over.
const PLAN_MAX: u32 = 400;
/// Pods on an exclusive slot unless the file says otherwise.
pub const EXCLUSIVE_SEATS: u32 = 64;

/// Device memory that stays with a context, in bytes, by the kind of the slot; `None`: each process measures it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[expect(missing_docs, reason = "by the kind of the slot")]
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
    /// For a kind.
    #[must_use]
    pub const fn of(self, kind: SlotKind) -> Option<u64> {
        match kind {
            SlotKind::Mps => self.mps,
            SlotKind::Exclusive => self.exclusive,
        }
    }
}

/// Which slots a `[[slot]]` is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotMatch {
    /// One, by its UUID.
    Uuid(String),
    /// Those of GPUs of these numbers: whole, or with the second pattern the MIG instances of these numbers.
    Index(Numbers, Option<Numbers>),
}

/// Some numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbers {
    /// All.
    All,
    /// From the first to the second.
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

    /// Whether a number is one of them.
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
            "allowed: a GPU's number, a range or *, as 0, 0-3 or *; with the MIG instances of it, as 1:2 or 1:*"
                .to_owned()
        })
    }

    /// Whether it is about this slot: a whole GPU, or the instance of this number of it. Without a pattern for instances a
    /// pattern matches whole GPUs and all instances.
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

/// A `[[slot]]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct SlotOverride {
    /// Which slots.
    #[serde(serialize_with = "as_text")]
    pub slot: SlotMatch,
    /// How they are shared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<SlotKind>,
    /// Pods on a slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seats: Option<u32>,
    /// Device memory that stays with a context.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "as_quantity"
    )]
    pub context_residue: Option<u64>,
}

/// What the file says of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotConfig {
    /// How it is shared.
    pub kind: SlotKind,
    /// Pods on it; `None`: what MPS allows, [`EXCLUSIVE_SEATS`] on an exclusive slot.
    pub seats: Option<u32>,
    /// Device memory that stays with a context.
    pub context_residue: Option<u64>,
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
        let residue = table.table("context-residue");
        self.context_residue.mps = residue.value("mps", quantity);
        self.context_residue.exclusive = residue.value("exclusive", quantity);
        residue.end();
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
        table.end();
        Some(Self {
            slot: slot?,
            kind,
            seats,
            context_residue,
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
