//! Compares the GPU with a naive model, which integrates every pod's speed by itself, for random pods with random work.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "shows the seed of a failure")]

use policy::tokens::{Quota, Rule, Settings, Share};
use policy::{Span, Time};
use simulator::agenda::Agenda;
use simulator::shared::Models;
use simulator::shared::gpu::{Event, Gpu, Guest, Member};
use testing::Random;

const MS: f64 = 1e6;
const STEPS: u32 = 20_000;

/// The model's state of a pod.
struct Naive {
    member: Member,
    guest: Guest,
    /// Remaining work in ns at speed 1; `None` without work.
    left: Option<f64>,
    busy: u64,
    /// Largest amount of work that the pod may still do after a close.
    drains: Option<f64>,
}

struct World {
    gpu: Gpu,
    rule: Rule,
    agenda: Agenda<Event>,
    pods: Vec<Naive>,
    at: u64,
    answered: u64,
    closed_while_running: u64,
}

impl World {
    fn new(rule: Rule) -> Self {
        let settings = Settings {
            rule,
            ..Settings::default()
        };
        Self {
            gpu: Gpu::new(settings, Models::fast_gshare().gate).unwrap(),
            rule,
            agenda: Agenda::new(),
            pods: Vec::new(),
            at: 0,
            answered: 0,
            closed_while_running: 0,
        }
    }

    fn now(&self) -> Time {
        Time(self.at)
    }

    /// Advances the model to a time, by the set of running pods and without predictions.
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a short test")]
    fn pass_to(&mut self, to: u64) {
        let passed = to - self.at;
        self.at = to;
        let runs: Vec<bool> = (self.pods.iter())
            .map(|pod| self.gpu.runs(pod.member))
            .collect();
        let running = || (self.pods.iter().zip(&runs)).filter(|(_, runs)| **runs);
        let count = running().count() as f64;
        let sms: u32 = running().map(|(pod, _)| pod.guest.sm).sum();
        let crowded = (10_000.0 / f64::from(sms.max(1))).min(1.0);
        for (pod, runs) in self.pods.iter_mut().zip(runs) {
            if !runs {
                pod.drains = None;
                continue;
            }
            let Guest {
                speed,
                interference,
                ..
            } = pod.guest;
            let work = passed as f64 * speed * crowded / (1.0 + interference * (count - 1.0));
            let left = pod.left.as_mut().unwrap();
            *left -= work;
            // Ends are predicted in whole nanoseconds.
            assert!(*left > -2.0, "{left} after its end");
            if let Some(drains) = &mut pod.drains {
                *drains -= work;
                assert!(*drains > -2.0, "{drains}: more work than was in flight");
            }
            pod.busy += passed;
        }
    }

    fn plan(&mut self) {
        for (at, event) in self.gpu.ahead() {
            assert!(at >= Time(self.at), "{event:?} in the past");
            self.agenda.add(at, event);
        }
    }

    fn handle(&mut self, random: &mut Random) {
        let Some(at) = self.agenda.next_at() else {
            return;
        };
        self.pass_to(at.0);
        let event = self.agenda.take().unwrap();
        if let Event::Closes(member, _) = event
            && self.gpu.runs(member)
        {
            // At most at full speed; a launch that was made runs to its end.
            let pod = self
                .pods
                .iter_mut()
                .find(|pod| pod.member == member)
                .unwrap();
            pod.drains = Some((2.0 * MS * pod.guest.speed).max(pod.guest.launch));
            self.closed_while_running += 1;
        }
        let now = self.now();
        self.gpu.handle(now, event);
        let mut some = false;
        while let Some((member, owner)) = self.gpu.ended() {
            some = true;
            let pod = self
                .pods
                .iter_mut()
                .find(|pod| pod.member == member)
                .unwrap();
            assert_eq!(owner, pod.guest.owner);
            assert!(
                pod.left.unwrap().abs() < 2.0,
                "{:?} left at its end",
                pod.left
            );
            self.answered += 1;
            pod.left = (random.below(3) > 0).then(|| work(random));
            // The work has been there for a while, or arrives just now.
            let since = Time(now.0 - random.below(5_000_000).min(now.0));
            self.gpu
                .next(now, member, pod.left.map(|work| (work, since)));
        }
        if some {
            self.gpu.proceed(now);
        }
        self.plan();
    }

    fn check(&mut self) {
        let now = self.now();
        let counts = self.rule.counts_sms();
        assert!(!counts || self.gpu.running_sm() <= 10_000);
        let running = (self.pods.iter()).filter(|pod| self.gpu.runs(pod.member));
        let running = running.count();
        assert!(self.rule != Rule::TimeOnly || running <= 1, "{running} run");
        for pod in &self.pods {
            assert_eq!(self.gpu.is_idle(pod.member), pod.left.is_none());
            assert_eq!(self.gpu.busy(now, pod.member), Span(pod.busy));
            // Time reported to the scheduler never exceeds the time that the pod ran.
            let charged = self.gpu.charged(pod.member).unwrap();
            assert!(charged.0 <= pod.busy);
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "below 100 ms")]
fn work(random: &mut Random) -> f64 {
    (1 + random.below(60_000_000)) as f64
}

fn guest(random: &mut Random, owner: u32) -> Guest {
    let percent = |from: u64, to: u64, random: &mut Random| {
        u32::try_from(from + random.below(to - from + 1)).unwrap()
    };
    let request = percent(0, 60, random);
    let limit = percent(u64::from(request.max(5)), 100, random);
    let sm = percent(5, 100, random) * 100;
    Guest {
        owner,
        sm,
        quota: Quota::new(Share::from_percent(request), Share::from_percent(limit)).unwrap(),
        speed: f64::from(percent(20, 100, random)) / 100.0,
        interference: f64::from(percent(0, 20, random)) / 100.0,
        launch: [0.0, 0.1, 5.0, 50.0][usize::try_from(random.below(4)).unwrap()] * MS,
        suspension: None,
    }
}

#[test]
fn pods_agree_with_the_naive_model_under_every_rule() {
    for (seed, rule) in (50_u64..).zip([
        Rule::Weir,
        Rule::Paper,
        Rule::TimeOnly,
        Rule::ReactiveBucket,
        Rule::Exclusive,
        Rule::Racing,
    ]) {
        println!("seed {seed}, {rule:?}");
        let mut random = Random(seed);
        let mut world = World::new(rule);
        for owner in 0..STEPS {
            match random.below(20) {
                0 if world.pods.len() < 8 => {
                    let guest = guest(&mut random, owner);
                    let member = world.gpu.add(world.now(), guest).unwrap();
                    world.pods.push(Naive {
                        member,
                        guest,
                        left: None,
                        busy: 0,
                        drains: None,
                    });
                }
                1 if !world.pods.is_empty() && random.below(8) == 0 => {
                    let at = random.below(world.pods.len() as u64);
                    let pod = world.pods.swap_remove(usize::try_from(at).unwrap());
                    world.gpu.remove(world.now(), pod.member);
                }
                2..5 => {
                    let now = world.now();
                    let idle = world.pods.iter_mut().find(|pod| pod.left.is_none());
                    if let Some(pod) = idle {
                        let work = work(&mut random);
                        pod.left = Some(work);
                        world.gpu.give(now, pod.member, work);
                    }
                }
                _ => world.handle(&mut random),
            }
            world.plan();
            world.check();
        }
        println!("{} answered", world.answered);
        assert!(world.answered > 200, "{}", world.answered);
        let closes = matches!(rule, Rule::Weir | Rule::Paper | Rule::TimeOnly);
        assert!(!closes || world.closed_while_running > 50);
    }
}

/// Returns the lengths in ns of the periods for which a pod with a limit of 27 % runs, with all work in launches of this length.
fn run_lengths(rule: Rule, launch: f64) -> Vec<u64> {
    let settings = Settings {
        rule,
        ..Settings::default()
    };
    let mut gpu = Gpu::new(settings, Models::fast_gshare().gate).unwrap();
    let mut agenda = Agenda::new();
    let share = Share::from_percent(27);
    let guest = Guest {
        owner: 0,
        sm: 10_000,
        quota: Quota::new(share, share).unwrap(),
        speed: 1.0,
        interference: 0.0,
        launch,
        suspension: None,
    };
    let member = gpu.add(Time::ZERO, guest).unwrap();
    let work = 500.0 * MS;
    gpu.give(Time::ZERO, member, work);
    let (mut since, mut all) = (None, Vec::new());
    loop {
        for (at, event) in gpu.ahead() {
            agenda.add(at, event);
        }
        let Some(event) = agenda.take() else {
            return all;
        };
        let now = agenda.now();
        if now > Time::ZERO.after(Span::from_secs(10)) {
            return all;
        }
        gpu.handle(now, event);
        while let Some((member, _)) = gpu.ended() {
            gpu.next(now, member, Some((work, now)));
            gpu.proceed(now);
        }
        match (gpu.runs(member), since) {
            (true, None) => since = Some(now),
            (false, Some(begun)) => {
                all.push(now.since(begun).0);
                since = None;
            }
            _ => {}
        }
    }
}

#[test]
fn a_close_waits_for_the_end_of_a_long_launch() {
    for rule in [Rule::Weir, Rule::Paper] {
        let whole = |ns: &u64| (ns + 50) % 50_000_000 < 100;
        let long = run_lengths(rule, 50.0 * MS);
        assert!(long.len() >= 8 && long.iter().all(whole), "{long:?}");
        // Short launches end 2 ms after the close, wherever that is.
        let short = run_lengths(rule, 0.1 * MS);
        assert!(short.len() >= 8 && !short.iter().all(whole), "{short:?}");
        // In both cases the limit is kept.
        for all in [long, short] {
            let sum: u64 = all.iter().sum();
            assert!((2_400_000_000..3_150_000_000).contains(&sum), "{sum}");
        }
    }
}
