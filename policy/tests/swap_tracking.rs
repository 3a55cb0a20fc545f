//! Tracking of a model's blocks, case by case.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use policy::swap::{
    BlockTaken, ModelBlock, Phase, SwapAction, Touch, Tracking, Verdict, WrittenBy,
};

fn reads(blocks: &[u32]) -> Vec<Touch> {
    touches(blocks, false, false)
}

fn touches(blocks: &[u32], writes: bool, waited: bool) -> Vec<Touch> {
    let touch = |&block| Touch {
        block: ModelBlock(block),
        writes,
        waited,
    };
    blocks.iter().map(touch).collect()
}

fn ids(blocks: impl Iterator<Item = (ModelBlock, u64)>) -> Vec<u32> {
    blocks.map(|(block, _)| block.0).collect()
}

/// Returns a model with weights in blocks 0 to `weights`, of 100 bytes and more, after its first run in that order.
fn model(weights: u32, order: &[u32]) -> Tracking {
    let mut tracking = Tracking::new();
    for block in 0..weights {
        tracking
            .alloc(ModelBlock(block), 100 + u64::from(block))
            .unwrap();
        tracking.copied_in(ModelBlock(block));
    }
    tracking.launch(&reads(order));
    assert_eq!(tracking.response(), Verdict::Learned);
    tracking
}

#[test]
fn a_first_run_distinguishes_weights_state_and_scratch() {
    let mut tracking = Tracking::new();
    let mut actions = Vec::new();
    for (block, bytes) in [(0, 10), (1, 20), (2, 30), (3, 40), (4, 50)] {
        tracking.alloc(ModelBlock(block), bytes).unwrap();
    }
    assert_eq!(
        tracking.alloc(ModelBlock(4), 1),
        Err(BlockTaken {
            block: ModelBlock(4)
        })
    );
    for block in [0, 1, 2] {
        tracking.copied_in(ModelBlock(block));
    }
    tracking.launch(&reads(&[2]));
    // Scratch: 1,000 and 500 at once, then 1,200; block 9 is used for two allocations.
    tracking.alloc(ModelBlock(9), 1_000).unwrap();
    tracking.alloc(ModelBlock(8), 500).unwrap();
    tracking.launch(&touches(&[9, 8, 3], true, false));
    tracking.free(ModelBlock(9), &mut actions);
    tracking.free(ModelBlock(8), &mut actions);
    tracking.alloc(ModelBlock(9), 1_200).unwrap();
    tracking.free(ModelBlock(9), &mut actions);
    tracking.launch(&reads(&[0, 2]));
    assert_eq!(tracking.phase(), Phase::Recording);
    assert_eq!(tracking.response(), Verdict::Learned);
    assert_eq!(tracking.phase(), Phase::Tracked);
    assert_eq!(
        ids(tracking.weights()),
        [2, 0, 1],
        "first touched first, untouched last"
    );
    assert_eq!(ids(tracking.state()), [3]);
    assert_eq!(ids(tracking.swap_order()), [2, 3, 0, 1], "4 is blank");
    assert_eq!(tracking.scratch_peak(), 1_500);
    assert_eq!(tracking.dirty_bytes(), 40);
    assert!(actions.is_empty());
    assert_eq!(tracking.response(), Verdict::Kept);
}

#[test]
fn later_runs_correct_the_order() {
    let mut tracking = model(4, &[3, 1, 0, 2]);
    let mut actions = Vec::new();
    tracking.free(ModelBlock(1), &mut actions);
    assert_eq!(ids(tracking.swap_order()), [3, 0, 2]);
    tracking.alloc(ModelBlock(1), 7).unwrap();
    tracking.launch(&touches(&[1], true, false));
    tracking.copied_in(ModelBlock(3));
    assert_eq!(tracking.response(), Verdict::Changed);
    assert_eq!(ids(tracking.weights()), [0, 2]);
    assert_eq!(
        ids(tracking.swap_order()),
        [3, 0, 2, 1],
        "a new block comes last"
    );
    assert_eq!(tracking.dirty_bytes(), 103 + 7);
    assert_eq!(tracking.response(), Verdict::Kept);
    // A larger batch needs more scratch.
    tracking.alloc(ModelBlock(9), 2_000).unwrap();
    tracking.free(ModelBlock(9), &mut actions);
    assert_eq!(tracking.response(), Verdict::Kept);
    assert_eq!(tracking.scratch_peak(), 2_000);
    assert!(actions.is_empty());
}

/// Runs twenty times with `wrong` of 19 first touches out of order. Returns the last response's verdict.
fn mispredict(wrong: u32) -> Verdict {
    let order: Vec<_> = (0..19).collect();
    let mut tracking = model(19, &order);
    let mut verdict = Verdict::Kept;
    for run in 0..20 {
        if run < wrong {
            // Waits for 1 before a touch of 0: one misprediction, since the run continues from there.
            tracking.launch(&touches(&[1], false, true));
        }
        tracking.launch(&touches(&order, false, true));
        assert_eq!(verdict, Verdict::Kept, "not before the twentieth");
        verdict = tracking.response();
    }
    let clean = if verdict == Verdict::RecordNext {
        Phase::Recording
    } else {
        Phase::Tracked
    };
    assert_eq!(tracking.phase(), clean);
    assert_eq!(tracking.mismatches(), (0, 0), "a new window");
    verdict
}

#[test]
fn more_than_a_twentieth_mispredicted_over_twenty_runs_is_recorded_again() {
    // 5 % of 380 are 19.
    assert_eq!(mispredict(0), Verdict::Kept);
    assert_eq!(mispredict(19), Verdict::Kept);
    assert_eq!(mispredict(20), Verdict::RecordNext);
}

#[test]
fn touches_without_a_wait_are_not_mispredicted_and_runs_without_touches_do_not_count() {
    let mut tracking = model(3, &[0, 1, 2]);
    for _ in 0..19 {
        tracking.launch(&touches(&[2, 1, 0, 2], false, false));
        assert_eq!(tracking.response(), Verdict::Kept);
        assert_eq!(tracking.response(), Verdict::Kept);
    }
    assert_eq!(tracking.mismatches(), (0, 57));
    tracking.launch(&touches(&[2, 1, 0], false, true));
    assert_eq!(tracking.mismatches(), (1, 60));
    assert_eq!(tracking.response(), Verdict::Kept, "1 of 60");
}

/// Runs twenty mispredicted runs, and then one to be recorded.
fn record_again(tracking: &mut Tracking, order: &[u32]) {
    for _ in 0..20 {
        assert_eq!(tracking.phase(), Phase::Tracked);
        tracking.launch(&touches(
            &ids(tracking.swap_order()).split_off(1),
            false,
            true,
        ));
        tracking.response();
    }
    assert_eq!(tracking.phase(), Phase::Recording);
    tracking.launch(&reads(order));
    assert_eq!(tracking.response(), Verdict::Learned);
}

#[test]
fn branches_are_merged_and_the_most_frequent_comes_first() {
    let mut tracking = model(6, &[0, 1, 2, 3]);
    record_again(&mut tracking, &[0, 4, 3]);
    assert_eq!(
        ids(tracking.weights()),
        [0, 1, 2, 3, 4, 5],
        "seen once each: the older first"
    );
    record_again(&mut tracking, &[0, 4, 3]);
    assert_eq!(ids(tracking.weights()), [0, 4, 3, 1, 2, 5]);
    tracking.free(ModelBlock(4), &mut Vec::new());
    tracking.response();
    assert_eq!(ids(tracking.weights()), [0, 3, 1, 2, 5]);
    // Of five paths the least frequent is dropped: the first one.
    for (seen, order) in [[5, 1], [5, 2], [5, 0]].iter().enumerate() {
        record_again(&mut tracking, order);
        assert_eq!(ids(tracking.weights())[..2], [0, 3], "after {seen}");
    }
    assert_eq!(ids(tracking.weights()), [0, 3, 5, 1, 2]);
}

#[test]
fn dirty_blocks_are_copied_back_before_memory_is_taken() {
    let mut tracking = model(4, &[0, 1, 2, 3]);
    let mut actions = Vec::new();
    tracking.evict(&mut actions);
    assert_eq!(actions, [SwapAction::Invalidate], "weights are on the host");
    assert!(!tracking.stay());
    actions.clear();
    tracking.restoring();
    tracking.launch(&touches(&[2], true, false));
    tracking.copied_in(ModelBlock(0));
    tracking.evict(&mut actions);
    let copy = |block: u32, written| SwapAction::CopyBack {
        block: ModelBlock(block),
        bytes: 100 + u64::from(block),
        written,
    };
    let both = [copy(0, WrittenBy::Host), copy(2, WrittenBy::Kernel)];
    assert_eq!(actions, both);
    actions.clear();
    tracking.evict(&mut actions);
    tracking.copied_back(ModelBlock(0), &mut actions);
    tracking.copied_back(ModelBlock(0), &mut actions);
    tracking.copied_back(ModelBlock(1), &mut actions);
    assert_eq!(actions, []);
    assert!(tracking.stay());
    assert_eq!(tracking.dirty_bytes(), 102, "one was copied back already");
    tracking.evict(&mut actions);
    tracking.launch(&touches(&[2], true, false));
    tracking.copied_back(ModelBlock(2), &mut actions);
    assert_eq!(
        actions,
        [copy(2, WrittenBy::Kernel), copy(2, WrittenBy::Kernel)]
    );
    actions.clear();
    tracking.free(ModelBlock(2), &mut actions);
    assert_eq!(
        actions,
        [SwapAction::Invalidate],
        "freed blocks are not waited for"
    );
}

#[test]
fn a_warm_model_allocates_nothing() {
    let order: Vec<_> = (0..200).collect();
    let mut tracking = model(200, &order);
    let mut actions = Vec::with_capacity(300);
    let work = |tracking: &mut Tracking, actions: &mut Vec<SwapAction>, launch: &mut Vec<Touch>| {
        let mut gone = 0;
        for run in 0..100_u32 {
            for block in 0..200 {
                launch.clear();
                launch.push(Touch {
                    block: ModelBlock(block),
                    writes: block < 3,
                    waited: block % 50 == run % 50,
                });
                tracking.launch(launch);
            }
            tracking.alloc(ModelBlock(200), 50).unwrap();
            tracking.free(ModelBlock(200), actions);
            tracking.response();
            tracking.evict(actions);
            for block in 0..3 {
                tracking.copied_back(ModelBlock(block), actions);
            }
            gone += u32::from(actions.last() == Some(&SwapAction::Invalidate));
            actions.clear();
            tracking.restoring();
        }
        gone
    };
    let mut launch = Vec::with_capacity(1);
    work(&mut tracking, &mut actions, &mut launch);
    let mut gone = 0;
    let counted =
        allocation_counter::measure(|| gone = work(&mut tracking, &mut actions, &mut launch));
    assert_eq!((gone, counted.count_total), (100, 0), "{counted:?}");
}
