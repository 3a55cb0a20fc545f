//! The paper's results on packing (FaST-GShare §5.4, §5.5), and corrections of its arithmetic (mechanisms §4.4).
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "figures, seen with --nocapture")]

use policy::footprint::Footprint;
use policy::rectangles::{
    Action, FunctionId, InstanceId, Order, Pod, Rectangles, Refusal, Settings, Sharing, SlotId,
};
use policy::tokens::Share;
use testing::Random;

const MEMORY: u64 = 16 << 30;

/// Quota and SMs in percent.
const RESNET: (u32, u32) = (40, 12);
const RNNT: (u32, u32) = (40, 24);
const BERT: (u32, u32) = (60, 50);
const PRINTED: [(u32, u32); 8] = [RESNET, RESNET, RESNET, RESNET, RNNT, RNNT, BERT, BERT];

fn pod((quota, sm): (u32, u32)) -> Pod {
    Pod {
        function: FunctionId(quota * 1_000 + sm),
        quota: Share::from_percent(quota),
        sm: sm * 100,
        footprint: Footprint::unshared(1 << 30),
    }
}

/// Returns the number of slots that a batch needs.
fn slots_for(settings: Settings, shapes: &[(u32, u32)]) -> usize {
    let mut packer = Rectangles::new(settings).unwrap();
    let batch: Vec<_> = (0..)
        .map(InstanceId)
        .zip(shapes.iter().copied().map(pod))
        .collect();
    for slot in 0..u32::try_from(batch.len()).unwrap() {
        packer.add_slot(SlotId(slot), MEMORY).unwrap();
    }
    let mut actions = Vec::new();
    packer.place_all(&batch, &mut actions);
    let mut slots: Vec<_> = actions
        .iter()
        .map(|action| match action {
            Action::Place { placement, .. } => placement.slot,
            other => panic!("{other:?}"),
        })
        .collect();
    slots.sort_unstable();
    slots.dedup();
    slots.len()
}

fn whole_window(order: Order) -> Settings {
    Settings {
        width: Share::WHOLE,
        order,
        ..Settings::default()
    }
}

#[test]
fn the_eight_pods_fit_one_gpu_by_descending_area_and_two_as_printed() {
    assert_eq!(slots_for(whole_window(Order::AreaDescending), &PRINTED), 1);
    assert_eq!(slots_for(Settings::paper(), &PRINTED), 2);
    let by_area = Settings {
        order: Order::AreaDescending,
        ..Settings::paper()
    };
    assert_eq!(slots_for(by_area, &PRINTED), 1);
}

/// After a restart the packer gets the positions of pods in any order: rectangles that leave no space for the next one
/// are laid out anew.
#[test]
fn existing_pods_of_a_slot_are_laid_out_until_they_fit() {
    let mut packer = Rectangles::new(whole_window(Order::Arrival)).unwrap();
    packer.add_slot(SlotId(0), MEMORY).unwrap();
    for (instance, shape) in (0..).map(InstanceId).zip(PRINTED) {
        let placed = packer.place_on(SlotId(0), instance, &pod(shape)).unwrap();
        assert_eq!(
            packer.place_of(instance),
            Some((SlotId(0), placed.rectangle))
        );
    }
    let pods: Vec<_> = packer.pods(SlotId(0)).collect();
    assert_eq!(pods.len(), 8);
    for (at, (_, one)) in pods.iter().enumerate() {
        assert!(pods[..at].iter().all(|(_, other)| !one.overlaps(other)));
    }
    assert_eq!(
        packer.place_on(SlotId(0), InstanceId(8), &pod(RESNET)),
        Err(Refusal::NoArea)
    );
    assert_eq!(packer.pods(SlotId(0)).collect::<Vec<_>>(), pods);
}

/// 98.4 % of the area does not fit into 90 %, but into two slots.
#[test]
fn the_eight_pods_need_two_gpus_where_a_tenth_of_the_window_stays_free() {
    assert_eq!(slots_for(Settings::default(), &PRINTED), 2);
}

#[test]
fn time_only_needs_four_gpus_and_exclusive_eight() {
    for (sharing, order, slots) in [
        (Sharing::TimeOnly, Order::AreaDescending, 4),
        // Four pairs of 40 + 40 leave no 40 for the two of 60.
        (Sharing::TimeOnly, Order::Arrival, 5),
        (Sharing::Exclusive, Order::AreaDescending, 8),
    ] {
        let settings = Settings {
            sharing,
            ..whole_window(order)
        };
        assert_eq!(
            slots_for(settings, &PRINTED),
            slots,
            "{sharing:?} {order:?}"
        );
    }
}

/// Calls `see` with all distinct orders of the remaining shapes, appended to `order`.
fn orders(
    left: &mut [((u32, u32), u32)],
    order: &mut Vec<(u32, u32)>,
    see: &mut impl FnMut(&[(u32, u32)]),
) {
    if left.iter().all(|&(_, count)| count == 0) {
        return see(order);
    }
    for at in 0..left.len() {
        if left[at].1 > 0 {
            left[at].1 -= 1;
            order.push(left[at].0);
            orders(left, order, see);
            order.pop();
            left[at].1 += 1;
        }
    }
}

#[test]
fn of_the_420_orders_of_the_eight_pods_138_reach_one_gpu() {
    for settings in [Settings::paper(), whole_window(Order::Arrival)] {
        let (mut all, mut one) = (0, 0);
        orders(
            &mut [(RESNET, 4), (RNNT, 2), (BERT, 2)],
            &mut Vec::new(),
            &mut |order| {
                all += 1;
                one += u32::from(slots_for(settings, order) == 1);
            },
        );
        assert_eq!((all, one), (420, 138));
    }
}

/// 60 random batches of 60 shapes of the profiling grid: sorting saves slots.
#[test]
fn sorted_batches_need_fewer_slots() {
    const SEED: u64 = 44;
    const BATCHES: u64 = 60;
    println!("seed {SEED}");
    let mut random = Random(SEED);
    let (mut arrival, mut sorted, mut bound) = (0, 0, 0);
    for _ in 0..BATCHES {
        let batch: Vec<_> = (0..60)
            .map(|_| {
                let quota = [20, 40, 60, 80, 100][random.below_u32(5) as usize];
                let sm = [6, 12, 24, 50, 60, 80, 100][random.below_u32(7) as usize];
                (quota, sm)
            })
            .collect();
        arrival += slots_for(whole_window(Order::Arrival), &batch);
        sorted += slots_for(whole_window(Order::AreaDescending), &batch);
        let area: u32 = batch.iter().map(|&(quota, sm)| quota * sm).sum();
        bound += area.div_ceil(10_000) as usize;
    }
    println!("{arrival} in arrival order, {sorted} sorted, {bound} by area, of {BATCHES} batches");
    assert!(bound <= sorted && sorted < arrival);
    // Within 15 % of the bound.
    assert!(sorted * 100 < bound * 115);
}

#[test]
fn shared_weights_let_three_of_vit_huge_on_a_gpu_that_two_would_fill() {
    const MB: u64 = 1 << 20;
    let vit = |footprint| Pod {
        function: FunctionId(9),
        quota: Share::from_percent(20),
        sm: 1_200,
        footprint,
    };
    let shared = Footprint {
        storage: 2_979 * MB,
        pod: 2_101 * MB,
    };
    for (footprint, expected) in [(shared, 3), (Footprint::unshared(4_735 * MB), 2)] {
        let mut packer = Rectangles::new(Settings::default()).unwrap();
        packer.add_slot(SlotId(0), 10_000 * MB).unwrap();
        let mut placed = 0;
        let refused = loop {
            match packer.place(InstanceId(placed), &vit(footprint)) {
                Ok(_) => placed += 1,
                Err(refused) => break refused,
            }
        };
        assert_eq!((placed, refused), (expected, Refusal::NoMemory));
        assert_eq!(
            packer.memory(SlotId(0)).unwrap().used(),
            footprint.of(placed)
        );
    }
}

/// A slot that has the weights, but not the memory for a second copy of them, is found; among slots with equal
/// rectangles the fuller one is chosen.
#[test]
fn a_slot_with_the_weights_needs_memory_only_for_the_pod() {
    let pod = Pod {
        function: FunctionId(1),
        quota: Share::from_percent(10),
        sm: 1_000,
        footprint: Footprint {
            storage: 100,
            pod: 10,
        },
    };
    let mut packer = Rectangles::new(Settings::default()).unwrap();
    packer.add_slot(SlotId(0), 125).unwrap();
    packer.add_slot(SlotId(1), 1_000).unwrap();
    let slots: Vec<_> = (0..3)
        .map(|n| packer.place(InstanceId(n), &pod).unwrap().slot.0)
        .collect();
    assert_eq!(slots, [0, 0, 1]);
}

#[test]
fn a_pod_with_a_quota_beyond_the_planned_window_gets_all_of_it() {
    let mut packer = Rectangles::new(Settings::default()).unwrap();
    packer.add_slot(SlotId(0), MEMORY).unwrap();
    let whole = packer.place(InstanceId(0), &pod((100, 24))).unwrap();
    assert_eq!(whole.rectangle.width, 900_000);
    packer.place(InstanceId(1), &pod((100, 76))).unwrap();
    assert_eq!(
        packer.place(InstanceId(2), &pod((1, 1))),
        Err(Refusal::NoArea)
    );
}

#[test]
fn invalid_settings_and_pods_are_refused() {
    let mut packer = Rectangles::new(Settings::default()).unwrap();
    packer.add_slot(SlotId(0), MEMORY).unwrap();
    assert_eq!(packer.add_slot(SlotId(0), 1), Err(Refusal::SlotTaken));
    assert!(packer.add_slot(SlotId(u32::MAX), 1).is_err());
    assert!(packer.remove_slot(SlotId(7), &mut Vec::new()).is_err());
    let good = pod((40, 12));
    assert!(packer.place(InstanceId(u32::MAX), &good).is_err());
    assert_eq!(
        packer.place_on(SlotId(7), InstanceId(0), &good),
        Err(Refusal::NoSuchSlot)
    );
    for sm in [0, 10_001] {
        assert_eq!(
            packer.find(&Pod { sm, ..good }),
            Err(Refusal::SmOutOfRange { limit: 10_000 })
        );
    }
    let quota = Share::NONE;
    assert_eq!(packer.find(&Pod { quota, ..good }), Err(Refusal::NoQuota));
    for settings in [
        Settings {
            width: Share::NONE,
            ..Settings::default()
        },
        Settings {
            sm_limit: 0,
            ..Settings::default()
        },
        Settings {
            sm_limit: u32::MAX,
            ..Settings::default()
        },
        Settings {
            pods_max: 0,
            ..Settings::default()
        },
    ] {
        assert!(Rectangles::new(settings).is_err());
    }
}
