//! Placement of a pod, decided once when it is added: the first slot on which it fits.
//!
//! | constraint | condition |
//! |---|---|
//! | kind | `isolation: shared` needs an mps slot, the others an exclusive one |
//! | seats | maximum number of pods on the slot; on an mps slot at most the client limit of MPS |
//! | memory | mps: Σ (`gpu-memory` + context residue); a pod without `gpu-memory` counts with its residue alone. Exclusive: each pod alone |
//! | rectangles | mps: Σ `sm-percent` × `quota-request` ≤ `slots.plan` of the slot (90 %) |

use annotations::{Isolation, SHARE_WHOLE, SM_WHOLE};

use crate::config::units::show_quantity;
use crate::node::{MpsState, NodeState, Plan, SlotState};
use crate::state::{PodSettings, Slot, SlotKey, SlotKind};

/// Maximum number of reasons listed in the error for a pod that no slot can take.
const REASONS_MAX: usize = 16;

/// A pod on a slot, as far as placement is concerned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlacedPod<'a> {
    pub(crate) slot: SlotKey,
    pub(crate) settings: &'a PodSettings,
}

/// Returns the slot for a pod beside the placed ones. `preferred`: UUID or name of the only slot considered.
///
/// # Errors
/// Returns the reasons why it fits on none of the slots.
pub(crate) fn place(
    node: &NodeState,
    placed: &[PlacedPod<'_>],
    settings: &PodSettings,
    preferred: Option<&str>,
) -> Result<SlotKey, String> {
    if node.slots.is_empty() {
        return Err(match &node.nvml_problem {
            Some(why) => format!("no slots on this node: {why}"),
            None => "no slots on this node: NVML lists no GPU".to_owned(),
        });
    }
    if let Some(preferred) = preferred {
        let is_preferred =
            |own: &&SlotState| own.slot.uuid == preferred || own.slot.name == preferred;
        // Of two slots with the same name, the one that is not lost.
        let mut named: Vec<_> = node.slots.iter().filter(is_preferred).collect();
        named.sort_by_key(|own| own.lost.is_some());
        let Some(own) = named.first() else {
            let names: Vec<_> = node
                .slots
                .iter()
                .map(|own| own.slot.name.as_str())
                .collect();
            return Err(format!(
                "unknown slot {:?}; slots: {}",
                preferred.chars().take(80).collect::<String>(),
                names.join(", ")
            ));
        };
        let why = |why| format!("slot {}: {why}", own.slot.name);
        return fits(own, placed, settings, node.plan)
            .map_err(why)
            .map(|()| own.slot.key);
    }
    let mut reasons = Vec::new();
    for own in &node.slots {
        match fits(own, placed, settings, node.plan) {
            Ok(()) => return Ok(own.slot.key),
            Err(why) => reasons.push(format!("slot {}: {why}", own.slot.name)),
        }
    }
    let more = reasons.len().saturating_sub(REASONS_MAX);
    reasons.truncate(REASONS_MAX);
    if more > 0 {
        reasons.push(format!("and {more} more"));
    }
    Err(reasons.join("; "))
}

/// Checks whether a pod fits on a slot beside the pods placed there.
///
/// # Errors
/// Returns the reason why it does not.
pub(crate) fn fits(
    own: &SlotState,
    placed: &[PlacedPod<'_>],
    settings: &PodSettings,
    plan: Plan,
) -> Result<(), String> {
    let slot = &own.slot;
    if let Some(why) = &own.lost {
        return Err(format!("is lost: {why}"));
    }
    match (settings.isolation, slot.kind) {
        (Isolation::Shared, SlotKind::Exclusive) => {
            return Err("is exclusive; isolation: shared needs an mps slot".to_owned());
        }
        (Isolation::Strict | Isolation::Tenant, SlotKind::Mps) => {
            return Err(
                "is shared by MPS; isolation: strict and tenant need an exclusive slot".to_owned(),
            );
        }
        _ => {}
    }
    if let MpsState::Unable { reason } = &own.mps {
        return Err(format!("MPS cannot run there: {reason}"));
    }
    let there = || placed.iter().filter(|other| other.slot == slot.key);
    let count = there().count();
    if count >= usize::try_from(slot.seats).unwrap_or(usize::MAX) {
        let limit = if slot.kind == SlotKind::Mps && slot.seats == slot.client_limit {
            " (MPS allows no more clients)"
        } else {
            ""
        };
        return Err(format!("all {} seats are taken{limit}", slot.seats));
    }
    memory_fits(slot, there(), settings)?;
    if slot.kind == SlotKind::Mps {
        rectangles_fit(there(), settings, plan)?;
    }
    Ok(())
}

fn memory_fits<'a>(
    slot: &Slot,
    there: impl Iterator<Item = &'a PlacedPod<'a>>,
    settings: &PodSettings,
) -> Result<(), String> {
    let residue = slot.context_residue.unwrap_or(0);
    let wants = |settings: &PodSettings| settings.gpu_memory.unwrap_or(0).saturating_add(residue);
    let taken = match slot.kind {
        // One pod uses the memory at a time.
        SlotKind::Exclusive => 0,
        SlotKind::Mps => there.fold(0_u64, |sum, other| {
            sum.saturating_add(wants(other.settings))
        }),
    };
    let wanted = wants(settings);
    if taken.saturating_add(wanted) <= slot.memory_bytes {
        return Ok(());
    }
    Err(format!(
        "{} of memory requested (context included), {} of {} free",
        show_quantity(wanted),
        show_quantity(slot.memory_bytes.saturating_sub(taken)),
        show_quantity(slot.memory_bytes)
    ))
}

fn rectangles_fit<'a>(
    there: impl Iterator<Item = &'a PlacedPod<'a>>,
    settings: &PodSettings,
    Plan(percent): Plan,
) -> Result<(), String> {
    let area = |own: &PodSettings| u64::from(own.sm_hundredths) * u64::from(own.quota_request_ppm);
    let whole = u64::from(SM_WHOLE) * u64::from(SHARE_WHOLE);
    let plan = whole / 100 * u64::from(percent);
    let taken: u64 = there.map(|other| area(other.settings)).sum();
    let wanted = area(settings);
    if taken + wanted <= plan {
        return Ok(());
    }
    // In hundredths of a percent, rounded up, so that the text never states a share that would fit.
    let share = |area: u64| crate::config::units::show_decimal(area / (whole / 10_000), 2);
    Err(format!(
        "sm-percent x quota-request is {} % of the slot, and {} % of the plan's {percent} % are taken",
        share(wanted.next_multiple_of(whole / 10_000)),
        share(taken),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{settings, slot};

    fn node(slots: &[(SlotKind, u64)]) -> NodeState {
        let mut node = NodeState::default();
        for (kind, memory) in slots {
            let added = node.add(0, |key| Slot {
                key,
                kind: *kind,
                memory_bytes: memory << 30,
                ..slot(key.0)
            });
            assert!(added.is_some());
        }
        node
    }

    fn shared(sm_percent: u32, request_percent: u32, memory_gib: u64) -> PodSettings {
        PodSettings {
            sm_hundredths: sm_percent * 100,
            quota_request_ppm: request_percent * 10_000,
            gpu_memory: Some(memory_gib << 30),
            ..settings()
        }
    }

    fn placed(slot: u32, settings: &PodSettings) -> PlacedPod<'_> {
        PlacedPod {
            slot: SlotKey(slot),
            settings,
        }
    }

    #[test]
    fn a_pod_is_placed_on_the_first_fitting_slot() {
        let node = node(&[
            (SlotKind::Exclusive, 80),
            (SlotKind::Mps, 16),
            (SlotKind::Mps, 80),
        ]);
        let small = shared(50, 50, 8);
        assert_eq!(place(&node, &[], &small, None), Ok(SlotKey(1)));
        assert_eq!(place(&node, &[], &small, Some("2")), Ok(SlotKey(2)));
        let uuid = node.slots[2].slot.uuid.clone();
        assert_eq!(place(&node, &[], &small, Some(&uuid)), Ok(SlotKey(2)));
        let there = [placed(1, &small), placed(1, &small)];
        assert_eq!(place(&node, &there, &small, None), Ok(SlotKey(2)));
        let mut tenant = small;
        tenant.isolation = Isolation::Tenant;
        assert_eq!(place(&node, &[], &tenant, None), Ok(SlotKey(0)));
    }

    #[test]
    fn the_error_contains_the_reason_for_each_slot() {
        let mut node = node(&[
            (SlotKind::Exclusive, 80),
            (SlotKind::Mps, 16),
            (SlotKind::Mps, 80),
        ]);
        node.slots[2].lost = Some("Xid 79".to_owned());
        let big = shared(50, 50, 20);
        assert_eq!(
            place(&node, &[], &big, None),
            Err(
                "slot 0: is exclusive; isolation: shared needs an mps slot; slot 1: 20Gi of memory requested \
                 (context included), 16Gi of 16Gi free; slot 2: is lost: Xid 79"
                    .to_owned()
            )
        );
        assert_eq!(
            place(&node, &[], &big, Some("7")),
            Err("unknown slot \"7\"; slots: 0, 1, 2".to_owned())
        );
        assert_eq!(
            place(&NodeState::default(), &[], &big, None),
            Err("no slots on this node: NVML lists no GPU".to_owned())
        );
    }

    #[test]
    fn requests_fill_nine_tenths_of_a_slot() {
        let node = node(&[(SlotKind::Mps, 80)]);
        let half = shared(100, 50, 1);
        let two_fifths = shared(100, 40, 1);
        assert_eq!(
            place(&node, &[placed(0, &half)], &two_fifths, None),
            Ok(SlotKey(0))
        );
        assert_eq!(
            place(&node, &[placed(0, &half)], &half, None),
            Err(
                "slot 0: sm-percent x quota-request is 50 % of the slot, and 50 % of the plan's 90 % \
                 are taken"
                    .to_owned()
            )
        );
        // A pod without a request always fits.
        let free = shared(100, 0, 1);
        assert_eq!(
            place(
                &node,
                &[placed(0, &half), placed(0, &two_fifths)],
                &free,
                None
            ),
            Ok(SlotKey(0))
        );
    }

    #[test]
    fn seats_and_mps_bound_the_number_of_pods() {
        let mut node = node(&[(SlotKind::Mps, 80)]);
        let one = shared(1, 0, 1);
        let there = vec![placed(0, &one); 48];
        assert_eq!(
            place(&node, &there, &one, None),
            Err("slot 0: all 48 seats are taken (MPS allows no more clients)".to_owned())
        );
        node.slots[0].mps = MpsState::Unable {
            reason: "no program".to_owned(),
        };
        assert_eq!(
            place(&node, &[], &one, None),
            Err("slot 0: MPS cannot run there: no program".to_owned())
        );
    }

    #[test]
    fn the_memory_of_contexts_counts() {
        let mut node = node(&[(SlotKind::Mps, 16)]);
        let slot = Slot {
            context_residue: Some(1 << 30),
            ..(*node.slots[0].slot).clone()
        };
        node.slots[0].slot = std::sync::Arc::new(slot);
        let seven = shared(1, 0, 7);
        assert_eq!(
            place(&node, &[placed(0, &seven)], &seven, None),
            Ok(SlotKey(0))
        );
        let there = [placed(0, &seven), placed(0, &seven)];
        assert!(place(&node, &there, &shared(1, 0, 0), None).is_err());
    }
}
