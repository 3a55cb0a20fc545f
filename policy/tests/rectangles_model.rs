//! The packer compared with a grid of 1 % × 1 % cells, of which every rectangle is tried.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "figures, seen with --nocapture")]

use std::cmp::Reverse;

use policy::footprint::Footprint;
use policy::rectangles::{
    Action, FreedRule, FunctionId, InstanceId, PlaceReason, Pod, Rectangle, Rectangles, Refusal,
    Restructuring, Settings, SlotId,
};
use policy::tokens::Share;
use testing::Random;

const CELL_WIDTH: u32 = 10_000;
const CELL_HEIGHT: u32 = 100;
const REMEMBERED_MAX: usize = 16;

/// A plane in cells: each row is a mask of the occupied ones.
struct Grid {
    width: usize,
    rows: Vec<u32>,
}

fn cells(rectangle: &Rectangle) -> (usize, usize, usize, usize) {
    let whole = |length: u32, cell: u32| {
        assert_eq!(length % cell, 0);
        usize::try_from(length / cell).unwrap()
    };
    (
        whole(rectangle.x, CELL_WIDTH),
        whole(rectangle.y, CELL_HEIGHT),
        whole(rectangle.width, CELL_WIDTH),
        whole(rectangle.height, CELL_HEIGHT),
    )
}

fn mask(x: usize, w: usize) -> u32 {
    ((1 << w) - 1) << x
}

impl Grid {
    fn new(width: u32, height: u32, pods: impl Iterator<Item = Rectangle>) -> Self {
        let (width, height) = (width as usize, height as usize);
        let mut rows = vec![0; height];
        for rectangle in pods {
            let (x, y, w, h) = cells(&rectangle);
            assert!(x + w <= width && y + h <= height, "outside: {rectangle:?}");
            for row in &mut rows[y..y + h] {
                assert_eq!(*row & mask(x, w), 0, "pods overlap: {rectangle:?}");
                *row |= mask(x, w);
            }
        }
        Self { width, rows }
    }

    fn is_free(&self, x: usize, y: usize, w: usize, h: usize) -> bool {
        self.rows[y..y + h].iter().all(|row| row & mask(x, w) == 0)
    }

    fn free_cells(&self) -> usize {
        let taken: u32 = self.rows.iter().map(|row| row.count_ones()).sum();
        self.width * self.rows.len() - taken as usize
    }

    /// Returns every free rectangle that cannot be extended in any direction.
    fn maximal(&self) -> Vec<Rectangle> {
        let mut found = Vec::new();
        for y in 0..self.rows.len() {
            for x in 0..self.width {
                let mut taken = 0;
                for h in 1..=self.rows.len() - y {
                    taken |= self.rows[y + h - 1];
                    // A rectangle that can be widened is not maximal.
                    let w = ((taken >> x).trailing_zeros() as usize).min(self.width - x);
                    if w == 0 {
                        break;
                    }
                    let grows = (x > 0 && self.is_free(x - 1, y, 1, h))
                        || (y > 0 && self.is_free(x, y - 1, w, 1))
                        || (y + h < self.rows.len() && self.is_free(x, y + h, w, 1));
                    if !grows {
                        found.push(Rectangle {
                            x: u32::try_from(x).unwrap() * CELL_WIDTH,
                            y: u32::try_from(y).unwrap() * CELL_HEIGHT,
                            width: u32::try_from(w).unwrap() * CELL_WIDTH,
                            height: u32::try_from(h).unwrap() * CELL_HEIGHT,
                        });
                    }
                }
            }
        }
        found.sort_unstable();
        found
    }
}

/// A placed pod in the model.
#[derive(Clone, Copy)]
struct PlacedPod {
    instance: InstanceId,
    slot: SlotId,
    pod: Pod,
    rectangle: Rectangle,
}

struct Model {
    settings: Settings,
    width: u32,
    height: u32,
    memory: u64,
    slots: Vec<SlotId>,
    pods: Vec<PlacedPod>,
    /// Slot, function and rectangle of removed pods, the latest last.
    remembered: Vec<(SlotId, FunctionId, Rectangle)>,
}

impl Model {
    fn on(&self, slot: SlotId) -> impl Iterator<Item = &PlacedPod> {
        self.pods.iter().filter(move |known| known.slot == slot)
    }

    fn used(&self, slot: SlotId) -> u64 {
        let mut functions = Vec::new();
        self.on(slot)
            .map(|known| {
                let storage = if functions.contains(&known.pod.function) {
                    0
                } else {
                    functions.push(known.pod.function);
                    known.pod.footprint.storage
                };
                storage + known.pod.footprint.pod
            })
            .sum()
    }

    fn grid(&self, slot: SlotId) -> Grid {
        let pods = self.on(slot).map(|known| known.rectangle);
        Grid::new(self.width, self.height, pods)
    }

    fn takes(&self, slot: SlotId, pod: &Pod) -> bool {
        let here = (self.on(slot)).any(|known| known.pod.function == pod.function);
        let storage = if here { 0 } else { pod.footprint.storage };
        self.used(slot) + storage + pod.footprint.pod <= self.memory
    }

    /// Returns a rectangle that a pod of the same function and shape has left on a slot with memory.
    fn reusable(&self, pod: &Pod, width: u32) -> Option<(SlotId, Rectangle)> {
        self.remembered
            .iter()
            .rev()
            .filter(|(_, function, left)| {
                *function == pod.function && (left.width, left.height) == (width, pod.sm)
            })
            // As many as the packer tries.
            .take(8)
            .map(|&(slot, _, left)| (slot, left))
            .find(|&(slot, _)| self.takes(slot, pod) && !self.is_full(slot))
    }

    fn is_full(&self, slot: SlotId) -> bool {
        self.on(slot).count() >= self.settings.pods_max as usize
    }

    /// Returns the best place by comparison of every free rectangle of every slot.
    fn best(
        &self,
        packer: &Rectangles,
        pod: &Pod,
        width: u32,
    ) -> Result<(SlotId, Rectangle), Refusal> {
        let mut best = None;
        let mut area_only = false;
        for &slot in &self.slots {
            if self.is_full(slot) {
                continue;
            }
            let free_cells = self.grid(slot).free_cells();
            // They are checked after every step to be the maximal ones.
            for free in packer.free(slot) {
                if free.width < width || free.height < pod.sm {
                    continue;
                }
                area_only = true;
                let rank = (free.area(), free_cells, free.y, free.x, slot);
                if self.takes(slot, pod) && best.is_none_or(|best| rank < best) {
                    best = Some(rank);
                }
            }
        }
        let refusal = if area_only {
            Refusal::NoMemory
        } else {
            Refusal::NoArea
        };
        let (.., y, x, slot) = best.ok_or(refusal)?;
        let rectangle = Rectangle {
            x,
            y,
            width,
            height: pod.sm,
        };
        Ok((slot, rectangle))
    }

    fn put(&mut self, instance: InstanceId, pod: Pod, slot: SlotId, rectangle: Rectangle) {
        self.remembered
            .retain(|(at, _, left)| *at != slot || !left.overlaps(&rectangle));
        self.pods.push(PlacedPod {
            instance,
            slot,
            pod,
            rectangle,
        });
    }

    fn remember(&mut self, gone: &PlacedPod, restructured: bool) {
        let slot = gone.slot;
        if restructured || self.on(slot).next().is_none() {
            self.remembered.retain(|&(at, ..)| at != slot);
        } else if self.settings.freed == FreedRule::Joined {
            let here = |&(at, ..): &(SlotId, FunctionId, Rectangle)| at == slot;
            if self.remembered.iter().filter(|left| here(left)).count() == REMEMBERED_MAX {
                let oldest = self.remembered.iter().position(here).unwrap();
                self.remembered.remove(oldest);
            }
            self.remembered
                .push((slot, gone.pod.function, gone.rectangle));
        }
    }

    /// Adopts the packer's rectangles of a slot's pods, after a check that they are the same pods.
    fn follow(&mut self, packer: &Rectangles, slot: SlotId) {
        let reported: Vec<_> = packer.pods(slot).collect();
        assert_eq!(reported.len(), self.on(slot).count(), "a pod is lost");
        for known in self.pods.iter_mut().filter(|known| known.slot == slot) {
            let &(_, rectangle) = (reported.iter())
                .find(|(instance, _)| *instance == known.instance)
                .expect("no pod is lost");
            let shape = |rectangle: Rectangle| (rectangle.width, rectangle.height);
            assert_eq!(shape(rectangle), shape(known.rectangle));
            known.rectangle = rectangle;
        }
    }

    fn check(&self, packer: &Rectangles) {
        for &slot in &self.slots {
            let grid = self.grid(slot);
            let mut free = packer.free(slot).to_vec();
            free.sort_unstable();
            for (at, one) in free.iter().enumerate() {
                let (x, y, w, h) = cells(one);
                assert!(grid.is_free(x, y, w, h), "taken: {one:?}");
                for (other_at, other) in free.iter().enumerate() {
                    assert!(
                        at == other_at || !one.contains(other),
                        "{other:?} in {one:?}"
                    );
                }
            }
            // No free area is lost.
            let covered = Grid::new(self.width, self.height, std::iter::empty());
            let mut rows = covered.rows;
            for one in &free {
                let (x, y, w, h) = cells(one);
                rows[y..y + h].iter_mut().for_each(|row| *row |= mask(x, w));
            }
            for (row, taken) in rows.iter().zip(&grid.rows) {
                assert_eq!(*row, !taken & mask(0, grid.width));
            }
            if self.settings.freed == FreedRule::Joined {
                assert_eq!(free, grid.maximal());
            }
            assert_eq!(packer.memory(slot).unwrap().used(), self.used(slot));
            assert!(self.used(slot) <= self.memory);
            assert!(self.on(slot).count() <= self.settings.pods_max as usize);
            let reported: Vec<_> = packer.pods(slot).collect();
            let known: Vec<_> = (self.on(slot).map(|k| (k.instance, k.rectangle))).collect();
            assert_eq!(reported, known);
            for (instance, rectangle) in known {
                assert_eq!(packer.place_of(instance), Some((slot, rectangle)));
            }
        }
    }
}

#[derive(Default, Debug)]
struct Coverage {
    reused: u32,
    best: u32,
    no_area: u32,
    no_memory: u32,
    restructured: u32,
    reported: u32,
    lost: u32,
}

fn run(
    seed: u64,
    settings: Settings,
    (width, height): (u32, u32),
    memory: u64,
    steps: u32,
) -> Coverage {
    println!("seed {seed}, {width} × {height} cells, {memory} bytes, {settings:?}");
    let settings = Settings {
        width: Share::from_percent(width),
        sm_limit: height * CELL_HEIGHT,
        ..settings
    };
    let mut random = Random(seed);
    let mut packer = Rectangles::new(settings).unwrap();
    let mut model = Model {
        settings,
        width,
        height,
        memory,
        slots: Vec::new(),
        pods: Vec::new(),
        remembered: Vec::new(),
    };
    let mut seen = Coverage::default();
    let mut actions = Vec::new();
    for slot in 0..3 {
        packer.add_slot(SlotId(slot), memory).unwrap();
        model.slots.push(SlotId(slot));
    }
    for step in 0..steps {
        let draw = random.below_u32(100);
        if draw < 54 {
            let instance = InstanceId(random.below_u32(60));
            let function = random.below_u32(4);
            // Recurring shapes, and arbitrary ones; a shape wider than the plane counts as wide as the plane.
            let (quota, sm) = match random.below_u32(5) {
                0 => (
                    1 + random.below_u32(width * 3 / 5),
                    1 + random.below_u32(height * 3 / 5),
                ),
                1 if function == 3 => (width + 1, 1 + random.below_u32(2)),
                _ => (3 + function, 5 - function),
            };
            let pod = Pod {
                function: FunctionId(function),
                quota: Share::from_percent(quota),
                sm: CELL_HEIGHT * sm,
                footprint: Footprint {
                    storage: u64::from(function) * 5,
                    pod: 7 + u64::from(function),
                },
            };
            let cut = pod.quota.min(settings.width).parts_per_million();
            if model.pods.iter().any(|known| known.instance == instance) {
                assert_eq!(packer.place(instance, &pod), Err(Refusal::InstanceTaken));
                continue;
            }
            let reusable = model.reusable(&pod, cut);
            let expected = reusable.map_or_else(|| model.best(&packer, &pod, cut), Ok);
            let found = packer.find(&pod);
            let placed = packer.place(instance, &pod);
            assert_eq!(found, placed);
            assert_eq!(
                placed.map(|at| (at.slot, at.rectangle)),
                expected,
                "step {step}"
            );
            match placed {
                Ok(at) => {
                    model.put(instance, pod, at.slot, at.rectangle);
                    if at.reason == PlaceReason::Reused {
                        assert!(reusable.is_some());
                        seen.reused += 1;
                    } else {
                        seen.best += 1;
                    }
                }
                Err(Refusal::NoMemory) => seen.no_memory += 1,
                Err(_) => seen.no_area += 1,
            }
        } else if draw < 94 {
            if model.pods.is_empty() {
                continue;
            }
            let at = random.below_u32(u32::try_from(model.pods.len()).unwrap());
            let gone = model.pods.remove(at as usize);
            let removed = packer.remove(gone.instance).unwrap();
            assert_eq!(removed.slot, gone.slot);
            model.remember(&gone, removed.restructured);
            if removed.restructured {
                seen.restructured += 1;
                let before = model.grid(gone.slot).maximal();
                model.follow(&packer, gone.slot);
                let after = model.grid(gone.slot).maximal();
                let rank = |free: &[Rectangle]| {
                    let largest = free.iter().map(Rectangle::area).max();
                    (largest, Reverse(free.len()))
                };
                let only_if_better = settings.restructuring.only_if_better;
                assert!(!only_if_better || rank(&after) > rank(&before));
            }
            assert_eq!(packer.remove(gone.instance), None);
        } else if draw < 98 {
            // As after a restart of the packer: it gets the position of an existing pod.
            let instance = InstanceId(60 + random.below_u32(20));
            let slot = model.slots[random.below_u32(3) as usize];
            let pod = Pod {
                function: FunctionId(0),
                quota: Share::from_percent(1 + random.below_u32(width / 2)),
                sm: CELL_HEIGHT * (1 + random.below_u32(height / 2)),
                footprint: Footprint::unshared(7),
            };
            let before = model.remembered.len();
            if let Ok(at) = packer.place_on(slot, instance, &pod) {
                seen.reported += 1;
                let old: Vec<_> = (model.on(slot).map(|k| (k.instance, k.rectangle))).collect();
                let new: Vec<_> = (packer.pods(slot).filter(|&(id, _)| id != instance)).collect();
                if old != new {
                    model.remembered.retain(|&(other, ..)| other != slot);
                    assert!(model.remembered.len() <= before);
                }
                model.put(instance, pod, slot, at.rectangle);
                model.follow(&packer, slot);
            }
        } else {
            let slot = model.slots[random.below_u32(3) as usize];
            actions.clear();
            packer.remove_slot(slot, &mut actions).unwrap();
            let lost: Vec<_> = (actions.iter())
                .map(|action| match action {
                    Action::Lost { instance } => *instance,
                    other => panic!("{other:?}"),
                })
                .collect();
            let known: Vec<_> = model.on(slot).map(|known| known.instance).collect();
            assert_eq!(lost, known);
            seen.lost += u32::try_from(lost.len()).unwrap();
            model.pods.retain(|known| known.slot != slot);
            model.remembered.retain(|&(at, ..)| at != slot);
            assert_eq!(packer.free(slot), []);
            packer.add_slot(slot, memory).unwrap();
        }
        model.check(&packer);
    }
    println!("{seen:?}");
    seen
}

#[test]
fn free_rectangles_are_the_maximal_ones_and_the_best_is_taken() {
    for (seed, plane, memory) in [(1, (12, 12), 1_000), (2, (20, 7), 1_000), (3, (9, 14), 40)] {
        let seen = run(seed, Settings::default(), plane, memory, 3_000);
        assert!(seen.reused > 50 && seen.best > 500 && seen.reported > 10 && seen.lost > 5);
        assert!(seen.restructured > 20);
        assert!(seen.no_area > 10 || seen.no_memory > 50);
    }
}

#[test]
fn memory_is_checked_on_every_slot() {
    let seen = run(4, Settings::default(), (12, 12), 34, 4_000);
    assert!(seen.no_memory > 100);
}

#[test]
fn slots_with_the_maximum_of_pods_accept_no_more() {
    let settings = Settings {
        pods_max: 3,
        ..Settings::default()
    };
    let seen = run(5, settings, (12, 12), 1_000, 2_000);
    assert!(seen.no_area > 100);
}

#[test]
fn kept_rectangles_are_free_and_restructuring_loses_no_pod() {
    let few = Settings {
        restructuring: Restructuring {
            rectangles_above: 4,
            ..Settings::paper().restructuring
        },
        ..Settings::paper()
    };
    for (seed, settings) in [(6, Settings::paper()), (7, few)] {
        let seen = run(seed, settings, (12, 12), 1_000, 3_000);
        assert!(seen.best > 500 && seen.reused == 0);
        assert_eq!(seen.restructured > 0, settings == few);
    }
}
