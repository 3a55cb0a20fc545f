//! The slots of a pool compared with a direct implementation of Algorithm 1 and of the eviction rules.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "the seed of a failure")]

use std::cmp::Reverse;
use std::collections::BTreeMap;

use policy::pool::slots::{
    Binding, Decision, EvictReason, Evicted, Eviction, Model, Patience, Placement, Pool, Run,
    RunReason, Settings, Source, Swap, Topology, WaitReason,
};
use policy::pool::{FunctionId, SlotId};
use policy::{Span, Time};
use testing::Random;

const MS: u64 = 1_000_000;
const SLOTS: u32 = 5;
const FUNCTIONS: u32 = 14;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Loading,
    Whole,
    Leaving,
}

#[derive(Clone, Copy, Debug)]
struct Copy {
    state: State,
    bytes: u64,
    used: u64,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    function: u32,
    loading: Option<Source>,
    since: u64,
    ends: u64,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    running: Option<Running>,
    down: bool,
    /// Ends of requests and their durations.
    ended: Vec<(u64, u64)>,
}

struct ReferencePool {
    settings: Settings,
    now: u64,
    capacity: Vec<u64>,
    pairs: Vec<(u32, u32)>,
    links: Vec<(u32, u32, u32)>,
    slots: Vec<Slot>,
    functions: BTreeMap<u32, Model>,
    copies: BTreeMap<(u32, u32), Copy>,
    residues: BTreeMap<(u32, u32), u64>,
    patient: BTreeMap<u32, u64>,
    uses: u64,
}

impl ReferencePool {
    fn free(&self, slot: u32) -> u64 {
        let at = |key: &(u32, u32)| key.1 == slot;
        let models: u64 = self
            .copies
            .iter()
            .filter(|c| at(c.0))
            .map(|c| c.1.bytes)
            .sum();
        let residues: u64 = self.residues.iter().filter(|r| at(r.0)).map(|r| r.1).sum();
        self.capacity[slot as usize] - models - residues
    }

    fn idle(&self, slot: u32) -> bool {
        let slot = &self.slots[slot as usize];
        slot.running.is_none() && !slot.down
    }

    fn state(&self, function: u32, slot: u32) -> Option<State> {
        self.copies.get(&(function, slot)).map(|copy| copy.state)
    }

    fn in_state(&self, function: u32, state: State) -> Vec<u32> {
        (0..SLOTS)
            .filter(|&slot| self.state(function, slot) == Some(state))
            .collect()
    }

    fn runs_on(&self, function: u32, slot: u32) -> bool {
        self.slots[slot as usize]
            .running
            .is_some_and(|r| r.function == function)
    }

    fn is_read(&self, function: u32, slot: u32) -> bool {
        self.slots
            .iter()
            .filter_map(|slot| slot.running)
            .any(|running| {
                running.function == function && running.loading == Some(Source::Slot(SlotId(slot)))
            })
    }

    /// Returns the models on a slot in the order of their eviction, with the reason.
    fn order(&self, slot: u32) -> Vec<(u32, u64, EvictReason)> {
        let mut order = Vec::new();
        for (&(function, at), copy) in &self.copies {
            let may = copy.state == State::Whole
                && !self.runs_on(function, at)
                && !self.is_read(function, at);
            if at != slot || !may {
                continue;
            }
            let duplicate = self.in_state(function, State::Whole).len() > 1;
            let Model { heavy, tight, .. } = self.functions[&function];
            let (class, reason) = match self.settings.eviction {
                Eviction::LeastRecentlyUsed => (0, EvictReason::LeastRecentlyUsed),
                _ if duplicate => (0, EvictReason::Duplicate),
                Eviction::Objectives if heavy && tight => (2, EvictReason::Heavy),
                _ if heavy => (1, EvictReason::Heavy),
                _ => (0, EvictReason::Light),
            };
            order.push((class, copy.used, function, copy.bytes, reason));
        }
        order.sort_by_key(|&(class, used, ..)| (class, used));
        order
            .into_iter()
            .map(|(_, _, f, bytes, reason)| (f, bytes, reason))
            .collect()
    }

    fn victims(&self, slot: u32, bytes: u64) -> Option<Vec<(u32, u64, EvictReason)>> {
        let mut free = self.free(slot);
        let mut victims = Vec::new();
        let mut order = self.order(slot).into_iter();
        while free < bytes {
            let next = order.next()?;
            free += next.1;
            victims.push(next);
        }
        Some(victims)
    }

    fn may_evict(&self, function: u32) -> bool {
        self.settings.binding == Binding::Pool
            || (self.in_state(function, State::Loading).is_empty()
                && self.in_state(function, State::Leaving).is_empty()
                && (0..SLOTS).all(|slot| !self.runs_on(function, slot)))
    }

    fn takes(&self, function: u32, slot: u32) -> bool {
        let bytes = self.functions[&function].bytes;
        match self.victims(slot, bytes) {
            None => false,
            Some(victims) => victims.is_empty() || self.may_evict(function),
        }
    }

    fn c(&self, slot: u32) -> u32 {
        let mut worst = 0;
        for &(one, other) in &self.pairs {
            let neighbour = match slot {
                s if s == one => other,
                s if s == other => one,
                _ => continue,
            };
            if let Some(running) = self.slots[neighbour as usize].running
                && running.loading == Some(Source::Host)
            {
                worst = worst.max(1 + u32::from(self.functions[&running.function].heavy));
            }
        }
        worst
    }

    fn link(&self, one: u32, other: u32) -> u32 {
        self.links
            .iter()
            .find(|&&(a, b, _)| (a, b) == (one, other) || (b, a) == (one, other))
            .map_or(0, |link| link.2)
    }

    /// Returns the load by ended requests, each halved once per half-life begun since, rounded down at each step.
    fn load(&self, slot: u32) -> u64 {
        let half_life = self.settings.load_half_life.0;
        let (mut load, mut period) = (0_u64, 0);
        for &(at, took) in &self.slots[slot as usize].ended {
            while period < at / half_life {
                (load, period) = (load / 2, period + 1);
                if load == 0 {
                    period = at / half_life;
                }
            }
            load += took;
        }
        let passed = self.now / half_life - period;
        if passed < 64 { load >> passed } else { 0 }
    }

    fn allowed(&self, function: u32, slot: u32) -> bool {
        self.settings.binding == Binding::Pool || self.residues.contains_key(&(function, slot))
    }

    fn why(&self, function: u32) -> WaitReason {
        let bytes = self.functions[&function].bytes;
        let residue = |slot: u32| {
            let of = self.residues.iter().filter(|r| r.0.1 == slot);
            of.map(|r| r.1).sum::<u64>()
        };
        let ever = (0..SLOTS).any(|slot| {
            self.allowed(function, slot) && bytes + residue(slot) <= self.capacity[slot as usize]
        });
        if !ever {
            WaitReason::NeverFits
        } else if self.settings.swap == Swap::On && !self.may_evict(function) {
            WaitReason::SecondCopy
        } else {
            WaitReason::Blocked
        }
    }

    /// Returns the decision by Algorithm 1, from top to bottom.
    fn decide(
        &mut self,
        function: u32,
        random: u64,
    ) -> Result<(u32, Source, RunReason), (WaitReason, Option<u64>)> {
        let wait = |reason| Err((reason, None));
        let Some(&model) = self.functions.get(&function) else {
            return wait(WaitReason::NoSuchFunction);
        };
        if (0..SLOTS).all(|slot| !self.allowed(function, slot)) {
            return wait(WaitReason::NoInstance);
        }
        let available: Vec<u32> = (0..SLOTS)
            .filter(|&slot| self.idle(slot) && self.allowed(function, slot))
            .filter(|&slot| self.state(function, slot) != Some(State::Leaving))
            .collect();
        let m = self.in_state(function, State::Whole);
        let held = self.copies.keys().any(|key| key.0 == function);
        let g: Vec<u32> = m
            .iter()
            .copied()
            .filter(|slot| available.contains(slot))
            .collect();
        let off = self.settings.swap == Swap::Off;
        if off && held {
            return match g.first() {
                Some(&slot) => Ok((slot, Source::Resident, RunReason::Bound)),
                None => wait(WaitReason::BoundSlotBusy),
            };
        }
        if available.is_empty() {
            return wait(WaitReason::NoSlotFree);
        }
        if model.writes && held {
            return match g.first() {
                Some(&slot) => Ok((slot, Source::Resident, RunReason::Resident)),
                None => wait(WaitReason::OneCopyBusy),
            };
        }
        let placement = self.settings.placement;
        let by_chance = placement == Placement::Random
            || (placement == Placement::ResidentElseRandom && g.is_empty());
        if by_chance {
            let among: Vec<u32> = if off {
                let fits = |&slot: &u32| self.free(slot) >= model.bytes;
                available.into_iter().filter(fits).collect()
            } else {
                available
            };
            for n in 0..among.len() {
                let from = usize::try_from(random % among.len() as u64).unwrap();
                let slot = among[(from + n) % among.len()];
                if m.contains(&slot) {
                    return Ok((slot, Source::Resident, RunReason::Random));
                }
                if self.takes(function, slot) {
                    let reason = if off {
                        RunReason::Bound
                    } else {
                        RunReason::Random
                    };
                    return Ok((slot, Source::Host, reason));
                }
            }
            return wait(self.why(function));
        }
        if !g.is_empty() {
            let slot = g.into_iter().min_by_key(|&slot| {
                let light = self
                    .copies
                    .iter()
                    .filter(|(key, copy)| key.1 == slot && copy.state != State::Loading)
                    .filter(|(key, _)| !self.functions[&key.0].heavy)
                    .count();
                (light, self.copies[&(function, slot)].used, slot)
            });
            return Ok((slot.unwrap(), Source::Resident, RunReason::Resident));
        }
        let mut pairs = Vec::new();
        for &to in &available {
            for &from in &m {
                let link = self.link(from, to);
                if link > 0 && self.takes(function, to) {
                    let quiet = self.c(to) == 0;
                    pairs.push((link, quiet, self.free(to), Reverse(to), Reverse(from)));
                }
            }
        }
        if let Some(&(.., Reverse(to), Reverse(from))) = pairs.iter().max() {
            return Ok((to, Source::Slot(SlotId(from)), RunReason::Link));
        }
        let best = available
            .iter()
            .filter(|&&slot| self.takes(function, slot))
            .filter(|&&slot| !off || self.free(slot) >= model.bytes)
            .map(|&slot| {
                let missing = model.bytes.saturating_sub(self.free(slot));
                (self.c(slot), missing, self.load(slot), slot)
            })
            .min();
        let Some((c, _, _, slot)) = best else {
            return wait(self.why(function));
        };
        if !off
            && c == 2
            && model.heavy
            && let Some(until) = self.patience(function, slot)
        {
            self.patient.insert(function, until);
            return Err((WaitReason::Contention, Some(until)));
        }
        let reason = match (off, c) {
            (true, _) => RunReason::Bound,
            (false, 0) => RunReason::QuietPath,
            (false, 1) => RunReason::BesideLight,
            (false, _) => RunReason::BesideHeavy,
        };
        Ok((slot, Source::Host, reason))
    }

    fn patience(&self, function: u32, slot: u32) -> Option<u64> {
        let Patience::QuarterOfContention { slowdown_percent } = self.settings.patience else {
            return None;
        };
        let heavy_ends = (0..SLOTS)
            .filter(|&n| self.pairs.contains(&(n, slot)) || self.pairs.contains(&(slot, n)))
            .filter_map(|n| self.slots[n as usize].running)
            .filter(|r| r.loading == Some(Source::Host) && self.functions[&r.function].heavy)
            .map(|r| r.ends)
            .max()?;
        let together = heavy_ends
            .saturating_sub(self.now)
            .min(self.functions[&function].swapped.0);
        let worth = together * u64::from(slowdown_percent) / 100 / 4;
        let until = *self.patient.get(&function).unwrap_or(&(self.now + worth));
        let better = (0..SLOTS)
            .filter(|&n| self.allowed(function, n) && self.c(n) < 2)
            .filter_map(|n| self.slots[n as usize].running)
            .map(|r| r.ends)
            .min()?;
        (self.now < until && better <= until).then_some(until)
    }

    fn evict(&mut self, function: u32, slot: u32, reason: EvictReason, out: &mut Vec<Evicted>) {
        let copy = self.copies.remove(&(function, slot)).unwrap();
        let writes = self.functions[&function].writes;
        out.push(Evicted {
            function: FunctionId(function),
            slot: SlotId(slot),
            bytes: copy.bytes,
            copy_back: writes && reason != EvictReason::SlotFailed,
            reason,
        });
    }

    fn schedule(&mut self, function: u32, random: u64, out: &mut Vec<Evicted>) -> Decision {
        let (slot, source, reason) = match self.decide(function, random) {
            Ok(run) => run,
            Err((reason, until)) => {
                return Decision::Wait {
                    reason,
                    until: until.map(Time),
                };
            }
        };
        self.patient.remove(&function);
        let model = self.functions[&function];
        let takes = if source == Source::Resident {
            model.execution
        } else {
            model.swapped
        };
        let loading = (source != Source::Resident).then_some(source);
        if loading.is_some() {
            let victims = self.victims(slot, model.bytes).unwrap();
            for &(victim, _, reason) in &victims {
                self.evict(victim, slot, reason, out);
            }
            if self.settings.binding == Binding::Process && !victims.is_empty() {
                for other in self.in_state(function, State::Whole) {
                    if source == Source::Slot(SlotId(other)) {
                        self.copies.get_mut(&(function, other)).unwrap().state = State::Leaving;
                    } else {
                        self.evict(function, other, EvictReason::Moved, out);
                    }
                }
            }
            let copy = Copy {
                state: State::Loading,
                bytes: model.bytes,
                used: 0,
            };
            self.copies.insert((function, slot), copy);
        }
        let (since, ends) = (self.now, self.now + takes.0);
        self.slots[slot as usize].running = Some(Running {
            function,
            loading,
            since,
            ends,
        });
        Decision::Run(Run {
            slot: SlotId(slot),
            source,
            reason,
        })
    }

    fn loaded(&mut self, slot: u32, out: &mut Vec<Evicted>) {
        let Some(running) = &mut self.slots[slot as usize].running else {
            return;
        };
        let Some(source) = running.loading.take() else {
            return;
        };
        let function = running.function;
        self.copies.get_mut(&(function, slot)).unwrap().state = State::Whole;
        if let Source::Slot(source) = source
            && self.state(function, source.0) == Some(State::Leaving)
        {
            self.evict(function, source.0, EvictReason::Moved, out);
        }
    }

    fn end(&mut self, slot: u32) -> Option<Running> {
        let running = self.slots[slot as usize].running.take()?;
        let took = self.now - running.since;
        let now = self.now;
        self.slots[slot as usize].ended.push((now, took));
        Some(running)
    }

    fn finished(&mut self, slot: u32, out: &mut Vec<Evicted>) {
        self.loaded(slot, out);
        if let Some(running) = self.end(slot) {
            self.uses += 1;
            self.copies.get_mut(&(running.function, slot)).unwrap().used = self.uses;
        }
    }

    fn abandon(&mut self, slot: u32) {
        let Some(running) = self.end(slot) else {
            return;
        };
        let function = running.function;
        if let Some(source) = running.loading {
            self.copies.remove(&(function, slot));
            if source != Source::Host {
                for (key, copy) in &mut self.copies {
                    if key.0 == function && copy.state == State::Leaving {
                        copy.state = State::Whole;
                    }
                }
            }
        } else {
            self.uses += 1;
            self.copies.get_mut(&(function, slot)).unwrap().used = self.uses;
        }
    }

    fn failed(&mut self, slot: u32, out: &mut Vec<Evicted>) {
        if self.slots[slot as usize].down {
            return;
        }
        self.abandon(slot);
        self.slots[slot as usize].down = true;
        for other in &mut self.slots {
            if let Some(running) = &mut other.running
                && running.loading == Some(Source::Slot(SlotId(slot)))
            {
                running.loading = Some(Source::Host);
            }
        }
        for function in 0..FUNCTIONS {
            if self.copies.contains_key(&(function, slot)) {
                self.evict(function, slot, EvictReason::SlotFailed, out);
            }
        }
        self.residues.retain(|key, _| key.1 != slot);
    }

    /// Asserts the invariants that hold after every message.
    fn check(&self, pool: &Pool, evicted: &[Evicted]) {
        for slot in 0..SLOTS {
            let view = pool.slot(SlotId(slot)).unwrap();
            let at = &self.slots[slot as usize];
            assert!(view.used + view.residue <= self.capacity[slot as usize]);
            assert_eq!(view.unused, self.free(slot), "slot {slot}");
            assert_eq!(view.free, self.idle(slot));
            assert_eq!(view.running.map(|f| f.0), at.running.map(|r| r.function));
            assert_eq!(view.loading, at.running.and_then(|r| r.loading));
            assert_eq!(
                view.busy.0,
                at.ended.iter().map(|ended| ended.1).sum::<u64>()
            );
            assert!(view.busy_loading.0 <= view.busy.0 + self.now);
        }
        for function in 0..FUNCTIONS {
            let hosts: Vec<u32> = pool
                .hosts(FunctionId(function))
                .map(|slot| slot.0)
                .collect();
            assert_eq!(
                hosts,
                self.in_state(function, State::Whole),
                "function {function}"
            );
        }
        for evicted in evicted {
            let used = self.runs_on(evicted.function.0, evicted.slot.0);
            assert!(
                !used || evicted.reason == EvictReason::SlotFailed,
                "{evicted:?} is in use"
            );
        }
    }
}

#[derive(Debug, Default)]
struct Coverage {
    runs: BTreeMap<String, u32>,
    waits: BTreeMap<String, u32>,
    evictions: BTreeMap<String, u32>,
}

fn model(random: &mut Random) -> Model {
    let heavy = random.below(2) == 0;
    let execution = Span((5 + random.below(40)) * MS);
    Model {
        bytes: if random.below(60) == 0 {
            150
        } else {
            5 + random.below(45)
        },
        heavy,
        tight: random.below(3) == 0,
        writes: random.below(8) == 0,
        execution,
        swapped: Span(execution.0 * if heavy { 3 } else { 1 }),
    }
}

fn run(seed: u64, settings: Settings, operations: u32, met: &mut Coverage) {
    println!("seed {seed}, {settings:?}");
    let mut random = Random(seed);
    let capacity = vec![100, 100, 80, 120, 60];
    let mut topology = Topology::new(&capacity).unwrap();
    let mut pairs = Vec::new();
    let mut links = Vec::new();
    for one in 0..SLOTS {
        for other in one + 1..SLOTS {
            if random.below(3) == 0 {
                topology
                    .share_host_path(SlotId(one), SlotId(other))
                    .unwrap();
                pairs.push((one, other));
            }
            if random.below(2) == 0 {
                let speed = [22_000, 44_000][random.index(2)];
                topology.link(SlotId(one), SlotId(other), speed).unwrap();
                links.push((one, other, speed));
            }
        }
    }
    let mut pool = Pool::new(settings, topology);
    let mut reference = ReferencePool {
        settings,
        now: 0,
        capacity,
        pairs,
        links,
        slots: vec![Slot::default(); SLOTS as usize],
        functions: BTreeMap::new(),
        copies: BTreeMap::new(),
        residues: BTreeMap::new(),
        patient: BTreeMap::new(),
        uses: 0,
    };
    let mut now = 1_000_000 * MS;
    let (mut out, mut expected) = (Vec::new(), Vec::new());
    for n in 0..operations {
        now += random.below(12) * MS;
        if random.below(200) == 0 {
            now += random.below(60_000) * MS;
        }
        out.clear();
        expected.clear();
        let id = u32::try_from(random.below(u64::from(FUNCTIONS))).unwrap();
        let slot = u32::try_from(random.below(u64::from(SLOTS))).unwrap();
        let (function, at) = (FunctionId(id), SlotId(slot));
        let operation = random.below(100);
        // Messages without a time do not advance the clock.
        match operation {
            0..=49 => {
                reference.now = now;
                let chance = random.next();
                let decision = pool.schedule(Time(now), function, chance, &mut out);
                let wanted = reference.schedule(id, chance, &mut expected);
                assert_eq!(decision, wanted, "operation {n}, function {id}");
                match decision {
                    Decision::Run(run) => {
                        *met.runs.entry(format!("{:?}", run.reason)).or_default() += 1
                    }
                    Decision::Wait { reason, .. } => {
                        *met.waits.entry(format!("{reason:?}")).or_default() += 1
                    }
                }
            }
            50..=63 => {
                reference.now = now;
                pool.loaded(Time(now), at, &mut out);
                reference.loaded(slot, &mut expected);
            }
            64..=84 => {
                reference.now = now;
                pool.finished(Time(now), at, &mut out);
                reference.finished(slot, &mut expected);
            }
            85 => {
                reference.now = now;
                pool.abandon(Time(now), at);
                reference.abandon(slot);
            }
            86 if random.below(4) == 0 => {
                let was_down = reference.slots[slot as usize].down;
                if !was_down {
                    reference.now = now;
                }
                pool.failed(Time(now), at, &mut out);
                reference.failed(slot, &mut expected);
            }
            86 | 87 => {
                pool.restored(at);
                reference.slots[slot as usize].down = false;
            }
            88 => {
                let removed = pool.remove(function, &mut out);
                let busy = (0..SLOTS).any(|slot| reference.runs_on(id, slot));
                assert_eq!(
                    removed.is_ok(),
                    reference.functions.contains_key(&id) && !busy
                );
                if removed.is_ok() {
                    for slot in reference.in_state(id, State::Whole) {
                        reference.evict(id, slot, EvictReason::Unloaded, &mut expected);
                    }
                    reference.residues.retain(|key, _| key.0 != id);
                    reference.functions.remove(&id);
                    reference.patient.remove(&id);
                }
            }
            89..=92 => {
                let model = model(&mut random);
                let added = pool.add(function, model);
                assert_eq!(added.is_ok(), !reference.functions.contains_key(&id));
                reference.functions.entry(id).or_insert(model);
            }
            93 => {
                let model = model(&mut random);
                let updated = pool.update(function, model);
                assert_eq!(updated.is_ok(), reference.functions.contains_key(&id));
                if let Some(known) = reference.functions.get_mut(&id) {
                    let writes = known.writes;
                    *known = Model { writes, ..model };
                }
            }
            94 => {
                let adopted = pool.adopt(function, at);
                let known = reference.functions.get(&id).copied();
                let held = reference.copies.keys().any(|key| key.0 == id);
                let there = reference.copies.contains_key(&(id, slot));
                let down = reference.slots[slot as usize].down;
                let may = known.is_some_and(|model| {
                    let another = there || (held && model.writes);
                    !(down || another) && model.bytes <= reference.free(slot)
                });
                assert_eq!(adopted.is_ok(), may, "{adopted:?}");
                if may {
                    reference.uses += 1;
                    let copy = Copy {
                        state: State::Whole,
                        bytes: known.unwrap().bytes,
                        used: reference.uses,
                    };
                    reference.copies.insert((id, slot), copy);
                }
            }
            95 => {
                let unloaded = pool.unload(function, at, &mut out);
                let may = reference.order(slot).iter().any(|victim| victim.0 == id)
                    && !reference.slots[slot as usize].down;
                assert_eq!(unloaded, may);
                if may {
                    reference.evict(id, slot, EvictReason::Unloaded, &mut expected);
                }
            }
            96..=98 => {
                let residue = random.below(12);
                let added = pool.add_instance(function, at, residue, &mut out);
                let victims = match settings.swap {
                    Swap::On => reference.victims(slot, residue),
                    Swap::Off => (residue <= reference.free(slot)).then(Vec::new),
                };
                let may = reference.functions.contains_key(&id)
                    && !reference.slots[slot as usize].down
                    && !reference.residues.contains_key(&(id, slot))
                    && victims.is_some();
                assert_eq!(added.is_ok(), may, "{added:?}");
                if may {
                    for (victim, _, reason) in victims.unwrap() {
                        reference.evict(victim, slot, reason, &mut expected);
                    }
                    reference.residues.insert((id, slot), residue);
                }
            }
            _ => {
                let removed = pool.remove_instance(function, at, &mut out);
                let may = reference.residues.contains_key(&(id, slot))
                    && !reference.runs_on(id, slot)
                    && !reference.is_read(id, slot);
                assert_eq!(removed.is_ok(), may, "{removed:?}");
                if may {
                    if reference.state(id, slot) == Some(State::Whole) {
                        reference.evict(id, slot, EvictReason::Unloaded, &mut expected);
                    }
                    reference.residues.remove(&(id, slot));
                }
            }
        }
        assert_eq!(out, expected, "operation {n}");
        reference.check(&pool, &out);
        for evicted in &out {
            *met.evictions
                .entry(format!("{:?}", evicted.reason))
                .or_default() += 1;
        }
    }
}

const PATIENT: Patience = Patience::QuarterOfContention {
    slowdown_percent: 160,
};

#[test]
fn slots_are_assigned_as_by_algorithm_1() {
    let mut met = Coverage::default();
    let mut seed = 0;
    for binding in [Binding::Pool, Binding::Process] {
        for eviction in [
            Eviction::Classes,
            Eviction::Objectives,
            Eviction::LeastRecentlyUsed,
        ] {
            for patience in [Patience::None, PATIENT] {
                for _ in 0..6 {
                    seed += 1;
                    let settings = Settings {
                        binding,
                        eviction,
                        patience,
                        ..Settings::default()
                    };
                    run(seed, settings, 4_000, &mut met);
                }
            }
        }
    }
    println!("{met:#?}");
    for reason in [
        "Resident",
        "Link",
        "QuietPath",
        "BesideLight",
        "BesideHeavy",
    ] {
        assert!(met.runs.contains_key(reason), "{reason} never met");
    }
    for reason in [
        "NoSuchFunction",
        "NoInstance",
        "NoSlotFree",
        "OneCopyBusy",
        "Blocked",
        "SecondCopy",
        "Contention",
        "NeverFits",
    ] {
        assert!(met.waits.contains_key(reason), "{reason} never met");
    }
    for reason in [
        "Duplicate",
        "Light",
        "Heavy",
        "LeastRecentlyUsed",
        "Moved",
        "Unloaded",
        "SlotFailed",
    ] {
        assert!(met.evictions.contains_key(reason), "{reason} never met");
    }
}

#[test]
fn random_and_permanent_assignment_agree_with_the_model() {
    let mut met = Coverage::default();
    let mut seed = 1_000;
    for swap in [Swap::On, Swap::Off] {
        for placement in [
            Placement::InterferenceAware,
            Placement::Random,
            Placement::ResidentElseRandom,
        ] {
            for binding in [Binding::Pool, Binding::Process] {
                for _ in 0..3 {
                    seed += 1;
                    let settings = Settings {
                        swap,
                        placement,
                        binding,
                        ..Settings::default()
                    };
                    run(seed, settings, 4_000, &mut met);
                }
            }
        }
    }
    println!("{met:#?}");
    for reason in ["Random", "Bound"] {
        assert!(met.runs.contains_key(reason), "{reason} never met");
    }
    assert!(met.waits.contains_key("BoundSlotBusy"));
}
