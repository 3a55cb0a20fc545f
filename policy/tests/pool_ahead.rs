//! Loads ahead in a pool: which models make the room, what is kept while a model is on its way, and for how long its request waits for it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use policy::pool::ahead::{Candidate, choose};
use policy::pool::slots::{
    Binding, Decision, Evicted, Model, Pool, Settings, Source, Topology, WaitReason,
};
use policy::pool::{FunctionId, SlotId};
use policy::{Span, Time};
use testing::Random;

const CAPACITY: u64 = 100;

fn model(bytes: u64, heavy: bool) -> Model {
    Model {
        bytes,
        heavy,
        tight: false,
        writes: false,
        execution: Span(10),
        swapped: Span(30),
    }
}

/// Returns a pool with models of these sizes, none of which is on a slot.
fn pool(slots: usize, sizes: &[u64]) -> Pool {
    let topology = Topology::new(&vec![CAPACITY; slots]).unwrap();
    let mut pool = Pool::new(Settings::default(), topology);
    for (function, bytes) in (0..).zip(sizes) {
        pool.add(FunctionId(function), model(*bytes, false))
            .unwrap();
    }
    pool
}

fn run(pool: &mut Pool, now: u64, function: u32) -> Decision {
    pool.schedule(Time(now), FunctionId(function), 0, &mut Vec::new())
}

#[test]
fn only_models_that_may_leave_make_the_room() {
    let mut pool = pool(1, &[40, 40, 40]);
    for (function, at) in [(0, 0), (1, 50)] {
        run(&mut pool, at, function);
        if function == 0 {
            pool.finished(Time(40), SlotId(0), &mut Vec::new());
        }
    }
    pool.loaded(Time(60), SlotId(0), &mut Vec::new());
    let (slot, mut evicted) = (SlotId(0), Vec::new());
    let may_not = |_| false;
    assert!(!pool.load_ahead(FunctionId(2), slot, 40, may_not, &mut evicted));
    assert!(evicted.is_empty());
    assert!(pool.load_ahead(FunctionId(2), slot, 40, |_| true, &mut evicted));
    // The one that runs stays.
    assert_eq!(evicted.len(), 1);
    assert_eq!(evicted[0].function, FunctionId(0));
    assert_eq!(pool.moves_ahead(slot), Some(FunctionId(2)));
    assert_eq!(pool.slot(slot).unwrap().used, 80);
    // One at a time.
    assert!(!pool.load_ahead(FunctionId(0), slot, 10, |_| true, &mut evicted));
}

#[test]
fn a_model_that_streams_takes_its_path_to_the_host() {
    let mut topology = Topology::new(&[CAPACITY; 2]).unwrap();
    topology.share_host_path(SlotId(0), SlotId(1)).unwrap();
    let mut pool = Pool::new(Settings::default(), topology);
    for function in 0..2 {
        let about = model(40, true);
        pool.add(FunctionId(function), about).unwrap();
    }
    let (streams, other) = (FunctionId(0), FunctionId(1));
    pool.set_streaming(SlotId(0), Some(streams));
    for slot in [0, 1].map(SlotId) {
        assert!(pool.is_path_taken(slot));
        assert!(!pool.can_load_ahead(slot, 10, |_| true));
    }
    assert!(!pool.load_ahead(other, SlotId(1), 40, |_| true, &mut Vec::new()));
    // One that is removed meanwhile takes nothing.
    pool.remove(streams, &mut Vec::new()).unwrap();
    assert!(!pool.is_path_taken(SlotId(1)));
    pool.set_streaming(SlotId(0), Some(streams));
    assert!(!pool.is_path_taken(SlotId(1)), "it is not known");
}

#[test]
fn a_request_waits_for_a_slot_to_which_its_model_was_loaded_unless_that_takes_longer_than_a_load() {
    let mut pool = pool(2, &[40, 40, 40]);
    run(&mut pool, 0, 0);
    run(&mut pool, 0, 1);
    let mut evicted = Vec::new();
    pool.loaded(Time(20), SlotId(0), &mut evicted);
    assert!(pool.load_ahead(FunctionId(2), SlotId(0), 40, |_| true, &mut evicted));
    pool.finished(Time(25), SlotId(1), &mut evicted);
    // The first slot is expected to be free at 30.
    let waits = Decision::Wait {
        reason: WaitReason::Ahead,
        until: Some(Time(30)),
    };
    assert_eq!(run(&mut pool, 26, 2), waits);
    pool.loaded_ahead(SlotId(0), true, false);
    assert_eq!(run(&mut pool, 27, 2), waits);
    // Overdue, it may take for ever.
    assert!(matches!(run(&mut pool, 30, 2), Decision::Run(run) if run.slot == SlotId(1)));
}

#[test]
fn a_load_ahead_that_fails_leaves_nothing_and_one_that_ends_may_be_evicted() {
    let mut pool = pool(1, &[60, 60]);
    let (slot, mut evicted) = (SlotId(0), Vec::new());
    for is_there in [false, true] {
        assert!(pool.load_ahead(FunctionId(0), slot, 60, |_| true, &mut evicted));
        // It is on its way: another has no room.
        assert!(matches!(run(&mut pool, 0, 1), Decision::Wait { .. }));
        pool.loaded_ahead(slot, is_there, false);
        assert_eq!(pool.held(FunctionId(0)), u64::from(is_there));
    }
    assert!(matches!(run(&mut pool, 0, 1), Decision::Run(_)));
    assert_eq!(pool.held(FunctionId(0)), 0);
}

#[test]
fn no_two_loads_share_a_path_if_one_of_them_is_ahead() {
    let mut pool = pool(4, &[10; 6]);
    pool.set_neighbours(SlotId(0), 0b10);
    for function in 0..4 {
        run(&mut pool, 0, function);
    }
    let can =
        |pool: &Pool| [0, 1, 2, 3].map(|slot| pool.can_load_ahead(SlotId(slot), 10, |_| true));
    assert_eq!(can(&pool), [false; 4], "all load");
    for slot in 1..4 {
        pool.loaded(Time(1), SlotId(slot), &mut Vec::new());
    }
    assert_eq!(can(&pool), [false, false, true, true]);
    pool.loaded(Time(1), SlotId(0), &mut Vec::new());
    let waiting = Candidate {
        function: FunctionId(4),
        bytes: 10,
        is_slowed: true,
        among: 0b1111,
        latest: Time(9),
    };
    let choose = |pool: &Pool, waiting: &Candidate| {
        let free_at = |slot: SlotId| Time(u64::from(9 - slot.0));
        choose(pool, waiting, |slot| slot.0 < 3, free_at, |_, _| true)
    };
    assert_eq!(choose(&pool, &waiting), Some(SlotId(2)));
    assert!(pool.load_ahead(FunctionId(5), SlotId(1), 10, |_| true, &mut Vec::new()));
    assert_eq!(can(&pool), [false, false, true, true]);
    let first = Candidate {
        among: 0b11,
        ..waiting
    };
    assert_eq!(choose(&pool, &first), None);
    let not_slowed = Candidate {
        is_slowed: false,
        ..waiting
    };
    assert_eq!(choose(&pool, &not_slowed), None);
    pool.finished(Time(5), SlotId(3), &mut Vec::new());
    assert_eq!(choose(&pool, &waiting), None, "it may run at once");
}

/// Random operations: what is on its way is never evicted, memory suffices, and what is refused changes nothing.
#[test]
fn a_model_on_its_way_stays() {
    let mut begun = 0;
    for seed in 0..400 {
        let mut random = Random(seed);
        let functions = 8;
        let slots = 1 + u32::try_from(random.below(3)).unwrap();
        let binding = [Binding::Pool, Binding::Process][usize::from(random.below(2) == 1)];
        let settings = Settings {
            binding,
            ..Settings::default()
        };
        let topology = Topology::new(&vec![CAPACITY; slots as usize]).unwrap();
        let mut pool = Pool::new(settings, topology);
        pool.set_neighbours(SlotId(0), 0b10);
        for function in (0..functions).map(FunctionId) {
            let bytes = 10 + random.below(50);
            pool.add(function, model(bytes, random.below(2) == 1))
                .unwrap();
            for slot in 0..slots {
                pool.add_instance(function, SlotId(slot), 0, &mut Vec::new())
                    .unwrap();
            }
        }
        let mut bytes_of = |pool: &mut Pool, function, slot| match pool.bytes(function, slot) {
            0 => 10 + random.below(50),
            bytes => bytes,
        };
        let mut sizes = Vec::new();
        for function in (0..functions).map(FunctionId) {
            sizes.push(bytes_of(&mut pool, function, SlotId(0)));
        }
        for time in 0..300 {
            let function = FunctionId(u32::try_from(random.below(functions.into())).unwrap());
            let slot = SlotId(u32::try_from(random.below(slots.into())).unwrap());
            let moving: Vec<_> = (0..slots).map(|at| pool.moves_ahead(SlotId(at))).collect();
            let mut evicted: Vec<Evicted> = Vec::new();
            match random.below(5) {
                0 => {
                    let decision = pool.schedule(Time(time), function, 0, &mut evicted);
                    if let Decision::Run(run) = decision
                        && let Source::Slot(from) = run.source
                    {
                        assert_ne!(moving[from.0 as usize], Some(function), "not whole");
                    }
                }
                1 => pool.finished(Time(time), slot, &mut evicted),
                2 => {
                    let before = format!("{pool:?}");
                    let odd = |other: FunctionId| other.0 % 2 == 1;
                    let bytes = sizes[function.0 as usize];
                    if pool.load_ahead(function, slot, bytes, odd, &mut evicted) {
                        begun += 1;
                        assert!(evicted.iter().all(|gone| odd(gone.function)));
                        assert_eq!(pool.moves_ahead(slot), Some(function));
                    } else {
                        assert_eq!(before, format!("{pool:?}"));
                    }
                }
                3 => pool.loaded_ahead(slot, random.below(4) > 0, false),
                _ => pool.forget_ahead(slot),
            }
            for gone in evicted {
                assert_ne!(
                    moving[gone.slot.0 as usize],
                    Some(gone.function),
                    "seed {seed}"
                );
            }
            for at in (0..slots).map(SlotId) {
                let view = pool.slot(at).unwrap();
                assert!(view.used + view.unused == CAPACITY, "seed {seed}: {view:?}");
                if let Some(function) = pool.moves_ahead(at) {
                    assert_eq!(pool.held(function) >> at.0 & 1, 1);
                }
            }
        }
    }
    assert!(begun > 1_000, "{begun}");
}
