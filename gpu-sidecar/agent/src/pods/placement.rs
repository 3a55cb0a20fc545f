//! Placement of a pod, decided once when it is added ([`policy::placement`]): what the slots offer, and the reasons in words.

use annotations::{Isolation, SHARE_WHOLE, SM_WHOLE};
use policy::placement::{self, Demand, Misfit, Taken};

use crate::config::units::{show_decimal, show_quantity};
use crate::node::{MpsState, NodeState, Plan, SlotState};
use crate::state::{PodSettings, SlotKey, SlotKind};

/// Maximum number of reasons listed in the error for a pod that no slot can take.
const REASONS_MAX: usize = 16;

/// A pod on a slot, as far as placement is concerned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlacedPod<'a> {
    pub(crate) slot: SlotKey,
    pub(crate) function: FunctionName<'a>,
    pub(crate) settings: &'a PodSettings,
}

/// Namespace and name of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FunctionName<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) function: &'a str,
}

/// Returns the slot for a pod of a function beside the placed ones. `preferred`: UUID or name of the only slot considered.
///
/// # Errors
/// Returns the reasons why it fits on none of the slots.
pub(crate) fn place(
    node: &NodeState,
    placed: &[PlacedPod<'_>],
    function: FunctionName<'_>,
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
    let offers: Vec<_> = node
        .slots
        .iter()
        .map(|own| {
            let is_instance = |other: &PlacedPod<'_>| {
                // A pod without a name of its function is an instance of none.
                !function.function.is_empty()
                    && other.function == function
                    && other.settings.version == settings.version
            };
            offer(own, placed, is_instance, node.plan)
        })
        .collect();
    let misfits = match placement::choose(node.placement, &offers, &demand(settings)) {
        Ok(at) => return Ok(node.slots[at].slot.key),
        Err(misfits) => misfits,
    };
    let reasons = node.slots.iter().zip(misfits).map(|(own, misfit)| {
        let why = sentence(own, settings, node.plan, misfit);
        format!("slot {}: {why}", own.slot.name)
    });
    let mut reasons: Vec<_> = reasons.collect();
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
    let (slot, taken) = offer(own, placed, |_| false, plan);
    placement::fits(&slot, &taken, &demand(settings))
        .map_err(|misfit| sentence(own, settings, plan, misfit))
}

/// Returns a slot as it is offered, and what the pods placed there take. `is_instance`: whether a pod is of the function of the one to be placed.
fn offer(
    own: &SlotState,
    placed: &[PlacedPod<'_>],
    is_instance: impl Fn(&PlacedPod<'_>) -> bool,
    Plan(percent): Plan,
) -> (placement::Slot, Taken) {
    let slot = placement::Slot {
        is_shared: own.slot.kind == SlotKind::Mps,
        is_usable: own.lost.is_none() && !matches!(own.mps, MpsState::Unable { .. }),
        host_path: own.slot.host_path,
        seats: own.slot.seats,
        memory: own.slot.memory_bytes,
        residue: own.slot.context_residue.unwrap_or(0),
        plan: placement::AREA_WHOLE / 100 * u64::from(percent),
    };
    let mut taken = slot.empty();
    for other in placed.iter().filter(|other| other.slot == own.slot.key) {
        taken.add(&slot, &demand(other.settings), is_instance(other));
    }
    (slot, taken)
}

fn demand(settings: &PodSettings) -> Demand {
    Demand {
        is_shared: settings.isolation == Isolation::Shared,
        memory: settings.gpu_memory.unwrap_or(0),
        area: u64::from(settings.sm_hundredths) * u64::from(settings.quota_request_ppm),
    }
}

/// Returns why a pod does not fit on a slot, in words.
fn sentence(own: &SlotState, settings: &PodSettings, plan: Plan, misfit: Misfit) -> String {
    let slot = &own.slot;
    if let Some(why) = &own.lost {
        return format!("is lost: {why}");
    }
    match misfit {
        Misfit::Kind if slot.kind == SlotKind::Exclusive => {
            "is exclusive; isolation: shared needs an mps slot".to_owned()
        }
        Misfit::Kind => {
            "is shared by MPS; isolation: strict and tenant need an exclusive slot".to_owned()
        }
        Misfit::Unusable => match &own.mps {
            MpsState::Unable { reason } => format!("MPS cannot run there: {reason}"),
            _ => "cannot be used".to_owned(),
        },
        Misfit::Seats => {
            let limit = if slot.kind == SlotKind::Mps && slot.seats == slot.client_limit {
                " (MPS allows no more clients)"
            } else {
                ""
            };
            format!("all {} seats are taken{limit}", slot.seats)
        }
        Misfit::Memory { wanted, free } => format!(
            "{} of memory requested (context included), {} of {} free",
            show_quantity(wanted),
            show_quantity(free),
            show_quantity(slot.memory_bytes)
        ),
        Misfit::Area { taken } => {
            // In hundredths of a percent, rounded up, so that the text never states a share that would fit.
            let unit = u64::from(SM_WHOLE) * u64::from(SHARE_WHOLE) / 10_000;
            let share = |area: u64| show_decimal(area / unit, 2);
            let Plan(percent) = plan;
            format!(
                "sm-percent x quota-request is {} % of the slot, and {} % of the plan's {percent} % are taken",
                share(demand(settings).area.next_multiple_of(unit)),
                share(taken),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Slot;
    use crate::testing::{settings, slot};

    const FUNCTION: FunctionName<'_> = FunctionName {
        namespace: "default",
        function: "detect",
    };

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
            function: FUNCTION,
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
        assert_eq!(place(&node, &[], FUNCTION, &small, None), Ok(SlotKey(1)));
        assert_eq!(
            place(&node, &[], FUNCTION, &small, Some("2")),
            Ok(SlotKey(2))
        );
        let uuid = node.slots[2].slot.uuid.clone();
        assert_eq!(
            place(&node, &[], FUNCTION, &small, Some(&uuid)),
            Ok(SlotKey(2))
        );
        let there = [placed(1, &small), placed(1, &small)];
        assert_eq!(place(&node, &there, FUNCTION, &small, None), Ok(SlotKey(2)));
        let mut tenant = small;
        tenant.isolation = Isolation::Tenant;
        assert_eq!(place(&node, &[], FUNCTION, &tenant, None), Ok(SlotKey(0)));
    }

    #[test]
    fn instances_of_a_function_get_slots_with_paths_of_their_own() {
        let mut node = node(&[(SlotKind::Exclusive, 80); 4]);
        for (at, own) in node.slots.iter_mut().enumerate() {
            let host_path = if at < 2 { 0 } else { 2 };
            own.slot = std::sync::Arc::new(Slot {
                host_path,
                ..(*own.slot).clone()
            });
        }
        let mut tenant = shared(1, 0, 1);
        tenant.isolation = Isolation::Tenant;
        let mut there = Vec::new();
        for expected in [0, 2, 1, 3, 0] {
            let slot = place(&node, &there, FUNCTION, &tenant, None);
            assert_eq!(slot, Ok(SlotKey(expected)));
            there.push(placed(expected, &tenant));
        }
        // Another version is another function: it goes where the fewest pods are.
        let mut next = tenant.clone();
        next.version = "2".to_owned();
        assert_eq!(place(&node, &there, FUNCTION, &next, None), Ok(SlotKey(1)));
    }

    #[test]
    fn by_best_fit_a_pod_is_placed_where_least_is_left() {
        let mut node = node(&[(SlotKind::Mps, 80), (SlotKind::Mps, 80)]);
        node.placement = placement::Rule::BestFit;
        let small = shared(50, 50, 8);
        assert_eq!(
            place(&node, &[placed(1, &small)], FUNCTION, &small, None),
            Ok(SlotKey(1))
        );
        let there = [placed(1, &small), placed(1, &small), placed(1, &small)];
        assert_eq!(place(&node, &there, FUNCTION, &small, None), Ok(SlotKey(0)));
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
            place(&node, &[], FUNCTION, &big, None),
            Err(
                "slot 0: is exclusive; isolation: shared needs an mps slot; slot 1: 20Gi of memory requested \
                 (context included), 16Gi of 16Gi free; slot 2: is lost: Xid 79"
                    .to_owned()
            )
        );
        assert_eq!(
            place(&node, &[], FUNCTION, &big, Some("7")),
            Err("unknown slot \"7\"; slots: 0, 1, 2".to_owned())
        );
        assert_eq!(
            place(&NodeState::default(), &[], FUNCTION, &big, None),
            Err("no slots on this node: NVML lists no GPU".to_owned())
        );
    }

    #[test]
    fn requests_fill_nine_tenths_of_a_slot() {
        let node = node(&[(SlotKind::Mps, 80)]);
        let half = shared(100, 50, 1);
        let two_fifths = shared(100, 40, 1);
        assert_eq!(
            place(&node, &[placed(0, &half)], FUNCTION, &two_fifths, None),
            Ok(SlotKey(0))
        );
        assert_eq!(
            place(&node, &[placed(0, &half)], FUNCTION, &half, None),
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
                FUNCTION,
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
            place(&node, &there, FUNCTION, &one, None),
            Err("slot 0: all 48 seats are taken (MPS allows no more clients)".to_owned())
        );
        node.slots[0].mps = MpsState::Unable {
            reason: "no program".to_owned(),
        };
        assert_eq!(
            place(&node, &[], FUNCTION, &one, None),
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
            place(&node, &[placed(0, &seven)], FUNCTION, &seven, None),
            Ok(SlotKey(0))
        );
        let there = [placed(0, &seven), placed(0, &seven)];
        assert!(place(&node, &there, FUNCTION, &shared(1, 0, 0), None).is_err());
    }
}
