//! Blocks that share physical memory.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use testing::Random;

use super::*;
use crate::memory::{contexts, ipc, native, peers, pools, spare};

/// The rest of a free.
type Free = Box<dyn FnOnce() -> Result<(), Code>>;

/// Host memory of each process, in granules.
const WINDOW: u64 = 1_024;

/// A process, its mover, and what its allocations hold: their size in granules, and the number in each.
struct Model {
    fake: &'static Fake,
    mover: Rc<RefCell<Mover>>,
    seq: u32,
    held: BTreeMap<Address, Vec<u64>>,
    next: u64,
}

impl Model {
    fn new(total: u64) -> Self {
        let fake = Fake::new();
        fake.total.set(total * GRANULE);
        // Longer than the copies take, which take no time here.
        fake.handle_ns.set(1_000);
        let bytes = WINDOW * GRANULE;
        add_window(fake, HostSpan { at: HOST, bytes }, true);
        Self {
            fake,
            mover: Rc::default(),
            seq: 0,
            held: BTreeMap::new(),
            next: 100,
        }
    }

    /// Returns a model of blocks of these granules that has left and returned twice, so that they share memory.
    fn shared(total: u64, granules: &[u64]) -> (Self, Vec<Address>) {
        let mut model = Self::new(total);
        let blocks = granules.iter().map(|granules| model.allocate(*granules));
        let blocks: Vec<_> = blocks.map(Option::unwrap).collect();
        for _ in 0..2 {
            model.evict();
            model.restore();
        }
        (model, blocks)
    }

    fn step(&self) {
        let mut mover = self.mover.borrow_mut();
        self.fake.in_other_thread(|| step(self.fake, &mut mover));
    }

    /// Runs a call of the program while the mover thread runs beside it.
    fn beside<T>(&self, call: impl FnOnce() -> T) -> T {
        for _ in 0..3 {
            let mover = Rc::clone(&self.mover);
            self.fake.at_wait(move |fake| {
                if let Ok(mut mover) = mover.try_borrow_mut() {
                    fake.in_other_thread(|| step(fake, &mut mover));
                }
            });
        }
        let result = call();
        self.fake.on_wait.borrow_mut().clear();
        result
    }

    fn order(&mut self, wanted: Residency) -> MoveReport {
        self.seq += 1;
        order(self.fake, &mut self.mover.borrow_mut(), wanted, self.seq)
    }

    /// Has an order carried out that may fail. Returns its refusal.
    fn try_order(&mut self, wanted: Residency) -> Option<MoveRefusal> {
        self.seq += 1;
        self.fake
            .orders
            .residency_wanted
            .store(wanted as u32, Ordering::Relaxed);
        self.fake
            .orders
            .order_seq
            .store(self.seq, Ordering::Release);
        self.step();
        let sent = self.fake.take_sent();
        let mut refusals = sent.iter().filter_map(|message| match message {
            FromProcess::Moved(report) => Some(report.refusal),
            _ => None,
        });
        refusals.next().expect("it is answered")
    }

    fn evict(&mut self) -> Transfer {
        let report = self.order(Residency::Host);
        assert_eq!(report.refusal, None);
        assert_eq!((self.fake.physical_bytes(), self.mappings()), (0, 0));
        report.transfer
    }

    fn restore(&mut self) {
        assert_eq!(self.order(Residency::Resident).refusal, None);
        self.check();
    }

    fn mappings(&self) -> usize {
        self.fake.mappings.borrow().len()
    }

    fn is_there(&self) -> bool {
        location(self.fake) != Residency::Host
    }

    /// Allocates blocks of new contents; `None` if there is no memory.
    fn allocate(&mut self, granules: u64) -> Option<Address> {
        let fake = self.fake;
        let made = self.beside(|| alloc::alloc(fake, granules * GRANULE, &unreached));
        let Outcome::Done(at) = made else {
            assert_eq!(made, Outcome::Fail(OUT_OF_MEMORY));
            return None;
        };
        self.held
            .insert(at, vec![0; usize::try_from(granules).unwrap()]);
        self.write(at);
        Some(at)
    }

    /// Writes new numbers into a block, as a kernel or a copy would.
    fn write(&mut self, at: Address) {
        let contents = self.held.get_mut(&at).unwrap();
        for (value, at) in contents.iter_mut().zip((at..).step_by(2 << 20)) {
            self.next += 1;
            *value = self.next;
            let change = || {
                self.fake.set_granule(at, *value);
                SUCCESS
            };
            let touch = || touch::touch(self.fake, &change);
            assert_eq!(self.fake.in_other_thread(touch), Outcome::Done(SUCCESS));
        }
    }

    fn free(&mut self, at: Address) {
        self.held.remove(&at).unwrap();
        assert_eq!(free_memory(self.fake, at), Outcome::Done(SUCCESS));
    }

    fn held_granules(&self) -> u64 {
        self.held
            .values()
            .map(|contents| contents.len() as u64)
            .sum()
    }

    /// Compares all contents on the device, and the account, with the model.
    fn check(&self) {
        for (&at, contents) in &self.held {
            for (value, at) in contents.iter().zip((at..).step_by(2 << 20)) {
                assert_eq!(self.fake.granule_at(at), Some(*value), "{at:#x}");
            }
        }
        let counted = self.fake.facts.bytes_used.load(Ordering::Relaxed);
        assert_eq!(counted, self.fake.physical_bytes());
        assert_eq!(
            total_of_kind(self.fake, Kind::Plain),
            self.held_granules() * GRANULE
        );
    }
}

#[test]
fn neighbours_that_have_left_twice_share_a_handle() {
    let mut model = Model::new(64);
    let blocks: Vec<_> = [3, 1, 4]
        .map(|granules| model.allocate(granules).unwrap())
        .into();
    model.evict();
    model.restore();
    assert_eq!(
        model.mappings(),
        3,
        "it is not known what the program keeps"
    );
    model.evict();
    model.restore();
    assert_eq!(model.mappings(), 1);
    assert_eq!(model.fake.access.borrow()[&blocks[0]].len(), 1);
    // What is new has memory of its own, and then shares as well.
    let new = model.allocate(2).unwrap();
    assert_eq!(model.mappings(), 2);
    assert_eq!(model.evict().copied_bytes, 2 * GRANULE);
    model.restore();
    assert_eq!(model.mappings(), 2);
    model.write(new);
    assert_eq!(model.evict().copied_bytes, 2 * GRANULE);
    model.restore();
    assert_eq!(model.mappings(), 1);
}

#[test]
fn blocks_keep_their_handles_where_mapping_takes_little_of_a_move() {
    let mut model = Model::new(64);
    model.fake.handle_ns.set(10);
    model.fake.copy_ns.set(1_000);
    for granules in [3, 1, 4] {
        model.allocate(granules).unwrap();
    }
    for _ in 0..3 {
        model.evict();
        model.restore();
    }
    assert_eq!(model.mappings(), 3);
}

#[test]
fn no_handle_is_larger_than_a_part_and_gaps_separate() {
    // The first block is larger than any shared handle.
    let (mut model, blocks) = Model::shared(512, &[129, 60, 68, 1, 2, 3]);
    assert_eq!(model.mappings(), 3);
    model.free(blocks[4]);
    for _ in 0..2 {
        model.evict();
        model.restore();
    }
    let mappings = model.fake.mappings.borrow();
    let sizes: Vec<u64> = mappings
        .values()
        .map(|(bytes, _)| bytes / GRANULE)
        .collect();
    assert_eq!(sizes, [129, 128, 1, 3]);
}

#[test]
fn memory_freed_amid_others_is_spare_and_leaves_with_them() {
    let (mut model, blocks) = Model::shared(64, &[3, 2, 4]);
    model.free(blocks[1]);
    let spare = |model: &Model| total_of_kind(model.fake, Kind::Spare) / GRANULE;
    assert_eq!((spare(&model), model.mappings()), (2, 1));
    model.check();
    model.evict();
    assert_eq!(spare(&model), 0);
    // Its addresses are used again.
    model.restore();
    assert_eq!(model.allocate(2), Some(blocks[1]));
    // All freed, the handle is released at once.
    model.free(blocks[0]);
    model.free(blocks[2]);
    model.free(blocks[1]);
    assert_eq!((model.fake.physical_bytes(), model.mappings()), (0, 0));
    model.check();
}

#[test]
fn the_last_block_of_a_handle_releases_it() {
    let (mut model, blocks) = Model::shared(64, &[3, 2, 4]);
    for at in [blocks[1], blocks[0], blocks[2]] {
        assert_eq!(model.mappings(), 1);
        model.free(at);
        model.check();
    }
    assert_eq!((model.fake.physical_bytes(), model.mappings()), (0, 0));
    assert_eq!(model.allocate(9), Some(blocks[0]));
}

#[test]
fn an_allocation_for_which_there_is_no_memory_has_freed_blocks_released() {
    let (mut model, blocks) = Model::shared(16, &[3, 6, 4]);
    model.free(blocks[1]);
    model.check();
    let large = model.allocate(9).expect("six are free, and three were");
    model.check();
    assert_eq!(model.mappings(), 3);
    // The rest keeps its contents on the host: nothing is copied again.
    model.free(large);
    assert_eq!(model.evict().copied_bytes, 0);
    model.restore();
    assert_eq!(model.allocate(10), None);
}

#[test]
fn the_program_is_shown_memory_that_was_freed_amid_others_as_free() {
    let (mut model, blocks) = Model::shared(64, &[3, 6, 4]);
    let fake = model.fake;
    let free = || info::view(fake, 64 * GRANULE - fake.physical_bytes(), 64 * GRANULE).free;
    let before = free();
    model.free(blocks[1]);
    assert_eq!(free(), before + 6 * GRANULE);
}

#[test]
fn an_exported_allocation_has_a_handle_of_its_own() {
    let (model, blocks) = Model::shared(64, &[3, 6, 4]);
    let fake = model.fake;
    let ticket = model.beside(|| ipc::get(fake, blocks[1] + 5));
    let Outcome::Done(ticket) = ticket else {
        panic!("{ticket:?}");
    };
    assert_eq!(ticket.read().unwrap().offset, 0);
    assert_eq!(model.mappings(), 3);
    model.check();
}

#[test]
fn nothing_is_divided_or_exported_amid_a_capture() {
    let (model, blocks) = Model::shared(16, &[3, 6, 4]);
    let fake = model.fake;
    fake.process.captures.begin();
    let ticket = model.beside(|| ipc::get(fake, blocks[1]));
    assert!(matches!(ticket, Outcome::Fail(_)), "{ticket:?}");
    assert_eq!(model.mappings(), 1);
}

#[test]
fn a_peer_gets_access_to_whole_handles() {
    let (model, blocks) = Model::shared(64, &[3, 6, 4]);
    let fake = model.fake;
    let other = CONTEXT + 0x10;
    fake.context.set(other);
    let enabled = peers::enable(fake, &|| SUCCESS, CONTEXT);
    assert_eq!(enabled, Outcome::Done(SUCCESS));
    assert_eq!(fake.access.borrow()[&blocks[0]].len(), 2);
}

#[test]
fn a_failed_eviction_leaves_all_contents_on_the_device() {
    for errors in 0..4 {
        let (mut model, blocks) = Model::shared(64, &[3, 6, 4]);
        let alone = model.allocate(2).unwrap();
        model.free(blocks[1]);
        let fake = model.fake;
        fake.unmap_error.borrow_mut().extend(vec![SUCCESS; errors]);
        fake.unmap_error.borrow_mut().push_back(719);
        let refused = model.try_order(Residency::Host).is_some();
        fake.unmap_error.borrow_mut().clear();
        assert_eq!(refused, errors < 2);
        if !refused {
            model.restore();
        }
        model.check();
        assert!(fake.process.memory_gate.is_open());
        model.write(alone);
        model.evict();
        model.restore();
    }
}

#[test]
fn a_model_for_which_there_is_no_room_while_it_is_divided_leaves_and_returns_later() {
    let (mut model, blocks) = Model::shared(16, &[3, 6, 4]);
    let kept = model.allocate(1).unwrap();
    model.free(blocks[1]);
    let fake = model.fake;
    // Another process takes what has left: its first block does not return.
    fake.create_error.borrow_mut().push_back(OUT_OF_MEMORY);
    fake.create_error
        .borrow_mut()
        .extend([OUT_OF_MEMORY; 2_000]);
    fake.take_sent();
    fake.process.divisions.request();
    model.step();
    fake.create_error.borrow_mut().clear();
    assert_eq!(
        (location(fake), fake.physical_bytes()),
        (Residency::Host, 0)
    );
    assert!(!fake.process.memory_gate.is_open());
    let sent = fake.take_sent();
    let is_reported = sent.iter().any(|message| {
        matches!(message, FromProcess::Moved(report) if report.residency == Residency::Host)
    });
    assert!(is_reported);
    model.restore();
    model.write(kept);
    model.check();
}

/// Random allocations, frees, writes and moves; at any time all contents are what was written, and what the program holds can be allocated.
#[test]
fn contents_are_whole_after_random_frees_and_moves() {
    let mut random = Random(11);
    let (mut shared, mut divided) = (0, 0);
    for _ in 0..150 {
        let total = 24 + random.below(20);
        let mut model = Model::new(total);
        let streams = u32::try_from(random.below(3)).unwrap();
        model
            .fake
            .orders
            .streams_restores
            .store(streams, Ordering::Relaxed);
        for _ in 0..60 {
            let held: Vec<Address> = model.held.keys().copied().collect();
            let some = (!held.is_empty()).then(|| held[random.index(held.len())]);
            match (random.below(9), some) {
                (0..3, _) if model.is_there() => {
                    let granules = 1 + random.below(9);
                    let has_room = model.held_granules() + granules <= total;
                    let lacks_memory =
                        model.fake.physical_bytes() + granules * GRANULE > total * GRANULE;
                    divided += u32::from(has_room && lacks_memory);
                    assert_eq!(model.allocate(granules).is_some(), has_room);
                }
                // Frees do not wait for memory to be there.
                (3, Some(at)) => model.free(at),
                (4, Some(at)) if model.is_there() => model.write(at),
                (5..7, _) if model.is_there() => {
                    model.evict();
                }
                (7.., _) if !model.is_there() => {
                    model.restore();
                    let most = model.held.len();
                    shared += usize::from(model.mappings() < most);
                }
                _ => {}
            }
            if model.is_there() {
                model.check();
            }
        }
        if !model.is_there() {
            model.restore();
        }
        for at in model.held.keys().copied().collect::<Vec<_>>() {
            model.free(at);
        }
        assert_eq!(model.fake.physical_bytes(), 0);
    }
    assert!(shared > 200 && divided > 10, "{shared} {divided}");
}

#[test]
fn a_block_that_is_being_copied_stays_mapped_while_a_thread_frees_it() {
    // Two groups of copies, of one handle; the second is being freed when the first is released.
    let (mut model, blocks) = Model::shared(256, &[33, 33, 33]);
    for at in &blocks {
        model.write(*at);
    }
    let fake = model.fake;
    fake.copy_ns.set(1_000);
    let rest: Rc<RefCell<Option<Free>>> = Rc::default();
    let (freed, third) = (Rc::clone(&rest), blocks[2]);
    fake.before_event_wait(0, move |fake| {
        let free = fake.memory().begin_free(fake, third);
        freed.replace(Some(Box::new(free)));
    });
    let report = model.order(Residency::Host);
    assert_eq!((report.refusal, fake.physical_bytes()), (None, 0));
    model.held.remove(&blocks[2]);
    let rest = rest.take().expect("it was reached");
    assert_eq!(rest(), Ok(()));
    model.restore();
    // Its addresses are free.
    assert_eq!(model.allocate(33), Some(blocks[2]));
}

#[test]
fn a_free_amid_a_division_is_counted_once() {
    let (mut model, blocks) = Model::shared(256, &[33, 33, 33]);
    model.write(blocks[1]);
    model.write(blocks[2]);
    model.free(blocks[0]);
    let fake = model.fake;
    fake.copy_ns.set(1_000);
    let rest: Rc<RefCell<Option<Free>>> = Rc::default();
    let (freed, third) = (Rc::clone(&rest), blocks[2]);
    fake.before_event_wait(0, move |fake| {
        let free = fake.memory().begin_free(fake, third);
        freed.replace(Some(Box::new(free)));
    });
    fake.process.divisions.request();
    model.step();
    model.held.remove(&blocks[2]);
    assert_eq!(rest.take().expect("it was reached")(), Ok(()));
    model.check();
    assert_eq!(model.mappings(), 1);
    assert_eq!(model.allocate(33), Some(blocks[0]));
    assert_eq!(model.allocate(33), Some(blocks[2]));
}

#[test]
fn exported_memory_stays_where_a_division_lacks_memory() {
    let (mut model, blocks) = Model::shared(16, &[3, 6, 4]);
    let exported = model.allocate(1).unwrap();
    let fake = model.fake;
    assert!(matches!(ipc::get(fake, exported), Outcome::Done(_)));
    model.free(blocks[1]);
    fake.create_error
        .borrow_mut()
        .extend([OUT_OF_MEMORY; 2_000]);
    fake.process.divisions.request();
    model.step();
    fake.create_error.borrow_mut().clear();
    assert_eq!(
        (location(fake), fake.physical_bytes()),
        (Residency::Host, GRANULE)
    );
    model.restore();
    assert!(fake.process.memory_gate.is_open());
}

#[test]
fn memory_of_every_kind_can_be_had_where_blocks_were_freed() {
    let kinds: [&dyn Fn(&Model) -> bool; 3] = [
        &|model| {
            let fake = model.fake;
            let properties = Properties::plain(0, false);
            let create = || fake.create_memory(&properties, 6 * GRANULE);
            let made = program::create(fake, 6 * GRANULE, &properties, &create);
            matches!(made, Outcome::Done(_))
        },
        &|model| {
            let fake = model.fake;
            // As much as there is, as the driver's own memory.
            let call = || match fake.physical_bytes() <= 10 * GRANULE {
                true => Ok(1),
                false => Err(OUT_OF_MEMORY),
            };
            let made = native::alloc(fake, Kind::Managed, 6 * GRANULE, &call);
            made == Outcome::Done(1)
        },
        &|model| {
            let fake = model.fake;
            fake.pools.borrow_mut().insert(crate::fake::POOL, (0, 0));
            let call = || match fake.physical_bytes() <= 10 * GRANULE {
                true => Ok(1),
                false => Err(OUT_OF_MEMORY),
            };
            let made = pools::alloc(fake, 6 * GRANULE, STREAM, &call);
            made == Outcome::Done(1)
        },
    ];
    for make in kinds {
        let (mut model, blocks) = Model::shared(16, &[3, 6, 7]);
        model.free(blocks[1]);
        assert!(model.beside(|| make(&model)));
    }
}

#[test]
fn a_division_is_tried_again_while_work_does_not_end() {
    for attempts in 0..4 {
        let (mut model, blocks) = Model::shared(16, &[3, 6, 4]);
        model.free(blocks[1]);
        let fake = model.fake;
        let number = fake.process.divisions.request();
        for _ in 0..attempts {
            fake.is_working.set(true);
            model.step();
            assert!(fake.process.memory_gate.is_open());
        }
        fake.is_working.set(false);
        model.step();
        let divisions = &fake.process.divisions;
        assert!(divisions.is_awaited(number).is_none());
        let is_divided = attempts < 2;
        assert_eq!(divisions.is_carried_out(number), is_divided);
        assert_eq!(model.mappings(), if is_divided { 2 } else { 1 });
        model.check();
        // For a while nothing is tried again.
        let next = divisions.request();
        model.step();
        assert_eq!(divisions.is_carried_out(next), is_divided);
        fake.pass(10_000_000_000);
        let last = divisions.request();
        model.step();
        assert!(divisions.is_carried_out(last));
        assert_eq!(model.mappings(), 2);
    }
}

#[test]
fn an_eviction_stands_for_a_division() {
    let (mut model, blocks) = Model::shared(16, &[3, 6, 4]);
    model.free(blocks[1]);
    let divisions = &model.fake.process.divisions;
    let number = divisions.request();
    model.evict();
    assert!(divisions.is_awaited(number).is_some());
    model.step();
    assert!(divisions.is_awaited(number).is_none());
    model.restore();
    assert_eq!(model.mappings(), 2, "neighbours no more");
}

#[test]
fn much_freed_memory_is_released_after_a_while_and_little_stays() {
    // Too little, enough, and less than what would have to move.
    for (granules, beside, is_released) in [(15, 3, false), (16, 3, true), (16, 17, false)] {
        let (mut model, blocks) = Model::shared(64, &[beside, granules, 4]);
        model.free(blocks[1]);
        model.step();
        assert_eq!(model.mappings(), 1, "not at once");
        model.fake.pass(1_100_000_000);
        model.step();
        assert_eq!(model.mappings() == 2, is_released);
        model.check();
    }
}

#[test]
fn a_process_that_is_to_relinquish_memory_divides() {
    let (mut model, blocks) = Model::shared(64, &[3, 6, 4]);
    model.free(blocks[1]);
    spare::relinquish(model.fake);
    assert_eq!(model.mappings(), 1);
    model.step();
    assert_eq!(model.mappings(), 2);
    model.check();
}

#[test]
fn slabs_share_handles_and_empty_ones_become_spare() {
    let mut model = Model::new(64);
    let fake = model.fake;
    let small: Vec<Address> = (0..6).map(|_| allocate(fake, GRANULE / 4)).collect();
    let large = model.allocate(3).unwrap();
    fake.set_granule(small[0], 1);
    fake.set_granule(small[4], 2);
    for _ in 0..2 {
        model.evict();
        assert_eq!(model.order(Residency::Resident).refusal, None);
    }
    assert_eq!(model.mappings(), 1);
    assert_eq!(
        (fake.granule_at(small[0]), fake.granule_at(small[4])),
        (Some(1), Some(2))
    );
    for at in small {
        assert_eq!(free_memory(fake, at), Outcome::Done(SUCCESS));
    }
    assert_eq!(total_of_kind(fake, Kind::Spare), 2 * GRANULE);
    model.check();
    model.free(large);
    model.evict();
    assert_eq!(fake.facts.bytes_used.load(Ordering::Relaxed), 0);
}

#[test]
fn a_return_that_fails_leaves_nothing_of_shared_handles_on_the_device() {
    type Fail = fn(&'static Fake);
    let failures: [Fail; 3] = [
        |fake| fake.create_error.borrow_mut().push_back(719),
        |fake| fake.map_error.borrow_mut().push_back(719),
        |fake| fake.copy_error.borrow_mut().extend([SUCCESS, 719]),
    ];
    for fail in failures {
        for streams in 0..2 {
            let (mut model, blocks) = Model::shared(64, &[3, 6, 4]);
            let fake = model.fake;
            fake.orders
                .streams_restores
                .store(streams, Ordering::Relaxed);
            model.evict();
            fail(fake);
            assert!(model.try_order(Residency::Resident).is_some());
            fake.copy_error.borrow_mut().clear();
            assert_eq!((fake.physical_bytes(), model.mappings()), (0, 0));
            model.restore();
            model.write(blocks[0]);
            model.evict();
            model.restore();
            assert_eq!(model.mappings(), 1);
        }
    }
}

#[test]
fn a_destroyed_context_takes_its_blocks_alone() {
    let (mut model, blocks) = Model::shared(64, &[3, 6]);
    let fake = model.fake;
    fake.context.set(CONTEXT + 1);
    let other = model.allocate(2).unwrap();
    fake.context.set(CONTEXT);
    for _ in 0..2 {
        model.evict();
        model.restore();
    }
    assert_eq!(model.mappings(), 1);
    contexts::context_destroyed(fake, CONTEXT + 1);
    model.held.remove(&other);
    model.check();
    assert_eq!(total_of_kind(fake, Kind::Spare), 2 * GRANULE);
    model.free(blocks[0]);
    model.free(blocks[1]);
    assert_eq!((fake.physical_bytes(), model.mappings()), (0, 0));
}
