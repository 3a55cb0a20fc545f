//! Tracking compared with a naive model, over random operations: the class of each block, mispredictions, and that no
//! write is ever lost.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "figures, seen with --nocapture")]

use std::collections::BTreeMap;

use policy::swap::{ModelBlock, Phase, SwapAction, Touch, Tracking, Verdict};
use testing::Random;

const BLOCKS: u64 = 14;

fn block(random: &mut Random) -> ModelBlock {
    ModelBlock(u32::try_from(random.below(BLOCKS)).unwrap())
}

#[derive(Clone, Copy, Debug)]
struct Block {
    bytes: u64,
    /// Number of the block's allocation.
    allocated: usize,
    answered: bool,
    copied_in: bool,
    written: bool,
    /// Versions of the block's content on the device, on the host, and in a copy to the host.
    device: u32,
    host: u32,
    copying: Option<u32>,
}

#[derive(Default)]
struct Model {
    blocks: BTreeMap<ModelBlock, Block>,
    allocations: usize,
    answered: bool,
    /// Of this run: allocations by number with their bytes, and whether freed.
    run: Vec<(usize, u64, bool)>,
    touched: Vec<ModelBlock>,
    scratch_peak: u64,
    order: Vec<ModelBlock>,
    /// Positions reached by this run, including those of blocks freed since.
    reached: Vec<usize>,
    mismatches: (u64, u64),
    touching_runs: u32,
    leaving: bool,
    gone: bool,
}

impl Model {
    fn write(&mut self, block: ModelBlock, by_host: bool) {
        if let Some(block) = self.blocks.get_mut(&block) {
            let kept = by_host && !self.answered && block.device == block.host;
            block.device += 1;
            if by_host && !self.answered {
                block.copied_in = true;
            } else {
                block.written = true;
            }
            if kept {
                block.host = block.device;
            }
        }
    }

    fn touch(&mut self, touch: Touch, phase: Phase) {
        if !self.blocks.contains_key(&touch.block) || self.touched.contains(&touch.block) {
            return;
        }
        let place = |block| self.order.iter().position(|&ordered| ordered == block);
        if phase == Phase::Tracked
            && self.blocks[&touch.block].answered
            && let Some(at) = place(touch.block)
        {
            let next = self.reached.iter().max().map_or(0, |last| last + 1);
            self.reached.push(at);
            self.mismatches.1 += 1;
            self.mismatches.0 += u64::from(touch.waited && at > next);
        }
        self.touched.push(touch.block);
    }

    /// Returns weights and state as expected after a response, by allocation.
    fn swapped(&self) -> Vec<(ModelBlock, u64)> {
        let swapped = self
            .blocks
            .iter()
            .filter(|(_, block)| block.copied_in || block.written);
        let mut swapped: Vec<_> = swapped
            .map(|(&id, block)| (block.allocated, id, block.bytes))
            .collect();
        swapped.sort_unstable();
        swapped
            .into_iter()
            .map(|(_, id, bytes)| (id, bytes))
            .collect()
    }

    fn run_scratch(&self) -> u64 {
        let freed = |number| {
            self.run
                .iter()
                .any(|&(other, _, began)| other == number && !began)
        };
        let scratch: Vec<_> = self
            .run
            .iter()
            .filter(|(number, ..)| freed(*number))
            .collect();
        let at = |end: usize| {
            let begun = scratch[..end]
                .iter()
                .filter(|event| event.2)
                .map(|event| event.1);
            let ended = scratch[..end]
                .iter()
                .filter(|event| !event.2)
                .map(|event| event.1);
            begun.sum::<u64>() - ended.sum::<u64>()
        };
        (0..=scratch.len()).map(at).max().unwrap_or(0)
    }

    fn carry_out(&mut self, actions: &mut Vec<SwapAction>, context: &str) {
        for action in actions.drain(..) {
            assert!(self.leaving && !self.gone, "{context}: {action:?}");
            match action {
                SwapAction::CopyBack { block, bytes, .. } => {
                    let block = self.blocks.get_mut(&block).unwrap();
                    assert_eq!(block.bytes, bytes, "{context}");
                    assert!(
                        block.copying.is_none() && block.device != block.host,
                        "{context}: {block:?}"
                    );
                    block.copying = Some(block.device);
                }
                SwapAction::Invalidate => {
                    for block in self.blocks.values() {
                        assert_eq!(
                            block.device, block.host,
                            "{context}: a write is lost: {block:?}"
                        );
                    }
                    self.gone = true;
                }
            }
        }
        let under_way = self.blocks.values().any(|block| block.copying.is_some());
        assert_eq!(
            self.leaving,
            self.gone || under_way,
            "{context}: every wait has a reason"
        );
    }

    /// Checks sets and order after a response.
    fn answer(&mut self, tracking: &Tracking, verdict: Verdict, recorded: bool, context: &str) {
        self.scratch_peak = self.scratch_peak.max(self.run_scratch());
        assert_eq!(tracking.scratch_peak(), self.scratch_peak, "{context}");
        assert_eq!(verdict == Verdict::Learned, recorded, "{context}");
        let expected = self.swapped();
        let order: Vec<_> = tracking.swap_order().collect();
        let mut sorted = order.clone();
        sorted.sort_by_key(|(id, _)| self.blocks[id].allocated);
        assert_eq!(sorted, expected, "{context}");
        for (id, _) in tracking.weights() {
            assert!(!self.blocks[&id].written, "{context}");
        }
        for (id, _) in tracking.state() {
            assert!(self.blocks[&id].written, "{context}");
        }
        let order: Vec<_> = order.into_iter().map(|(id, _)| id).collect();
        let first_of = |first: &[ModelBlock]| -> Vec<ModelBlock> {
            let there = |id: &&ModelBlock| expected.iter().any(|(other, _)| other == *id);
            let mut all: Vec<_> = first.iter().filter(there).copied().collect();
            let rest: Vec<_> = expected
                .iter()
                .map(|&(id, _)| id)
                .filter(|id| !all.contains(id))
                .collect();
            all.extend(rest);
            all
        };
        if !self.answered {
            assert_eq!(order, first_of(&self.touched), "{context}: by first touch");
        } else if !recorded {
            // A block whose id is reused is a new one, and comes last.
            let stayed: Vec<_> = self
                .order
                .iter()
                .filter(|id| self.blocks.get(*id).is_some_and(|block| block.answered))
                .copied()
                .collect();
            assert_eq!(order, first_of(&stayed), "{context}: as before");
            assert!(verdict != Verdict::Kept || order == self.order, "{context}");
        }
        if !recorded && !self.reached.is_empty() {
            self.touching_runs += 1;
        }
        self.order = order;
        self.answered = true;
        for block in self.blocks.values_mut() {
            block.answered = true;
        }
        self.touched.clear();
        self.reached.clear();
        self.run.clear();
    }
}

fn run(seed: u64) -> [u32; 3] {
    let mut random = Random(seed);
    let mut tracking = Tracking::new();
    let mut model = Model::default();
    let mut actions = Vec::new();
    let mut seen = [0; 3];
    // Some models are stable, so that windows end without a new recording.
    let calm = random.below(3) == 0;
    for step in 0..3_000 {
        let context = format!("seed {seed}, step {step}");
        let block = block(&mut random);
        match random.below(if calm { 60 } else { 30 }) {
            0..3 => {
                let bytes = 1 + random.below(1_000);
                let there = model.blocks.contains_key(&block);
                assert_eq!(tracking.alloc(block, bytes).is_err(), there, "{context}");
                if !there {
                    let allocated = model.allocations;
                    model.allocations += 1;
                    model.run.push((allocated, bytes, true));
                    let new = Block {
                        bytes,
                        allocated,
                        answered: false,
                        copied_in: false,
                        written: false,
                        device: 0,
                        host: 0,
                        copying: None,
                    };
                    model.blocks.insert(block, new);
                }
            }
            3 if !calm || random.below(4) == 0 => {
                tracking.free(block, &mut actions);
                if let Some(freed) = model.blocks.remove(&block) {
                    if model
                        .run
                        .iter()
                        .any(|&(number, ..)| number == freed.allocated)
                    {
                        model.run.push((freed.allocated, freed.bytes, false));
                    }
                    model.touched.retain(|&touched| touched != block);
                    model
                        .order
                        .iter_mut()
                        .filter(|id| **id == block)
                        .for_each(|id| id.0 = u32::MAX);
                }
            }
            4..6 if !model.gone => {
                tracking.copied_in(block);
                model.write(block, true);
            }
            6 => {
                tracking.evict(&mut actions);
                model.leaving = true;
            }
            7..10 => {
                let under_way = model
                    .blocks
                    .iter()
                    .find(|(_, block)| block.copying.is_some());
                let block = under_way.map_or(block, |(&id, _)| id);
                tracking.copied_back(block, &mut actions);
                if let Some(block) = model.blocks.get_mut(&block)
                    && let Some(version) = block.copying.take()
                {
                    block.host = version;
                }
            }
            10 => {
                assert_eq!(tracking.stay(), !model.gone, "{context}");
                if !model.gone {
                    model.leaving = false;
                    model
                        .blocks
                        .values_mut()
                        .for_each(|block| block.copying = None);
                }
            }
            11 if model.gone => {
                tracking.restoring();
                (model.leaving, model.gone) = (false, false);
                seen[2] += 1;
            }
            12..15 => {
                let recorded = tracking.phase() == Phase::Recording;
                let verdict = tracking.response();
                model.answer(&tracking, verdict, recorded, &context);
                if recorded {
                    seen[0] += 1;
                } else if model.touching_runs == 20 {
                    let (wrong, all) = std::mem::take(&mut model.mismatches);
                    assert_eq!(
                        verdict == Verdict::RecordNext,
                        wrong * 20 > all,
                        "{context}: {wrong} of {all}"
                    );
                    model.touching_runs = 0;
                    seen[1] += u32::from(verdict != Verdict::RecordNext);
                } else {
                    assert_ne!(verdict, Verdict::RecordNext, "{context}");
                }
            }
            _ if !model.gone => {
                let in_order = calm && tracking.phase() == Phase::Tracked;
                let next = model.order.iter().find(|id| !model.touched.contains(id));
                let touch = Touch {
                    block: if in_order {
                        *next.unwrap_or(&block)
                    } else {
                        block
                    },
                    writes: random.below(6) == 0,
                    waited: random.below(2) == 0,
                };
                model.touch(touch, tracking.phase());
                tracking.launch(&[touch]);
                if touch.writes {
                    model.write(touch.block, false);
                }
            }
            _ => {}
        }
        model.carry_out(&mut actions, &context);
        assert_eq!(tracking.mismatches(), model.mismatches, "{context}");
        let dirty = model
            .blocks
            .values()
            .filter(|block| block.device != block.host);
        assert_eq!(
            tracking.dirty_bytes(),
            dirty.map(|block| block.bytes).sum(),
            "{context}"
        );
    }
    seen
}

#[test]
fn tracking_agrees_with_the_model() {
    let mut all = [0; 3];
    for seed in 0..120 {
        for (sum, seen) in all.iter_mut().zip(run(seed)) {
            *sum += seen;
        }
    }
    println!("recorded, windows kept, restored: {all:?}");
    assert!(all[0] > 240 && all[1] > 20 && all[2] > 300, "{all:?}");
}
