//! One revision, pods that start and die, and a control process that may end at any step: the revision's path is never
//! empty for long.

use policy::attach::{Attachment, AttachmentState, Owner, Step, View, owners};
use policy::{Span, Time};

use testing::Random;

/// Longest delay until Kubernetes reports a pod's death or readiness.
const NOTICED_MAX_MS: u64 = 2_000;
/// Longest delay until Kubernetes mirrors Knative's endpoints after the label is removed.
const COPIED_MAX_MS: u64 = 1_000;
/// Longest time between two looks of the control process, and until it is restarted.
const LOOK_MAX_MS: u64 = 500;
const ABSENT_MAX_MS: u64 = 1_500;
/// Longest time without a path, counted from the start of the control process, which does not know for how long there
/// was no pod before.
const EMPTY_MAX: Span = Span::from_secs(10);

#[derive(Clone, Copy)]
struct Pod {
    owner: Owner,
    is_alive: bool,
    /// Readiness reported by Kubernetes, and the time at which the report becomes current.
    is_ready: bool,
    noticed_at: Time,
}

struct World {
    random: Random,
    now: Time,
    pods: Vec<Pod>,
    is_wanted: bool,
    slice: Option<Vec<Owner>>,
    has_label: bool,
    /// Time at which Knative's endpoints are mirrored; `None` while they must not be.
    copied_at: Option<Time>,
    control: Attachment,
    began_at: Time,
    looks_at: Time,
    steps: [u32; 4],
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            random: Random(seed),
            now: Time::ZERO,
            pods: Vec::new(),
            is_wanted: true,
            slice: None,
            has_label: false,
            copied_at: Some(Time::ZERO),
            control: Attachment::default(),
            began_at: Time::ZERO,
            looks_at: Time::ZERO,
            steps: [0; 4],
        }
    }

    fn soon(&mut self, max_ms: u64) -> Time {
        let ms = self.random.below(max_ms);
        self.now.after(Span::from_millis(ms))
    }

    fn is_copied(&self) -> bool {
        self.copied_at.is_some_and(|at| at <= self.now)
    }

    fn has_path(&self) -> bool {
        let is_alive = |owner: &Owner| {
            self.pods
                .iter()
                .any(|pod| pod.owner == *owner && pod.is_alive)
        };
        let is_ours = self.slice.iter().flatten().any(is_alive);
        is_ours || self.is_copied()
    }

    fn change(&mut self) {
        match self.random.below(100) {
            0..8 if self.pods.len() < 4 => {
                let noticed_at = self.soon(NOTICED_MAX_MS);
                let owner = Owner(self.random.next());
                self.pods.push(Pod {
                    owner,
                    is_alive: true,
                    is_ready: false,
                    noticed_at,
                });
            }
            8..12 if !self.pods.is_empty() => {
                let at = self.random.index(self.pods.len());
                self.pods[at].is_alive = false;
                self.pods[at].noticed_at = self.soon(NOTICED_MAX_MS);
            }
            12..14 => self.is_wanted = !self.is_wanted,
            14..16 => self.restart(),
            _ => {}
        }
        let now = self.now;
        for pod in &mut self.pods {
            if pod.noticed_at <= now {
                pod.is_ready = pod.is_alive;
            }
        }
        let slice = self.slice.clone().unwrap_or_default();
        // A dead pod is removed once nothing names it any more.
        self.pods
            .retain(|pod| pod.is_alive || pod.is_ready || slice.contains(&pod.owner));
    }

    fn restart(&mut self) {
        self.control = Attachment::default();
        self.looks_at = self.soon(ABSENT_MAX_MS);
        self.began_at = self.looks_at;
    }

    fn look(&mut self) {
        let ready: Vec<_> = self.pods.iter().filter(|pod| pod.is_ready).collect();
        let ready: Vec<_> = ready.iter().map(|pod| pod.owner).collect();
        let mut own = Vec::new();
        owners(7, &ready, 1, &mut own);
        let view = View {
            is_wanted: self.is_wanted,
            owners: &own,
            slice: self.slice.as_deref(),
            has_label: self.has_label,
            is_copied: self.is_copied(),
        };
        let step = self.control.next(self.now, &view);
        let is_lost = self.random.below(8) == 0;
        if !matches!(step, Step::Rest(_)) && is_lost {
            // The write fails, or the process ends before it.
            self.restart();
            return;
        }
        match step {
            Step::Write => {
                assert!(self.is_wanted && !own.is_empty());
                self.slice = Some(own);
                self.steps[0] += 1;
            }
            Step::SetLabel => {
                assert!(!self.has_label && self.slice.as_ref() == Some(&own));
                self.has_label = true;
                self.copied_at = None;
                self.steps[1] += 1;
            }
            Step::ClearLabel => {
                assert!(self.has_label);
                self.has_label = false;
                self.copied_at = Some(self.soon(COPIED_MAX_MS));
                self.steps[2] += 1;
            }
            Step::DeleteSlice => {
                assert!(!self.has_label);
                assert!(self.is_copied(), "nothing would be left");
                self.slice = None;
                self.steps[3] += 1;
            }
            Step::Rest(until) => assert!(until.is_none_or(|until| until > self.now)),
        }
        self.looks_at = self.soon(LOOK_MAX_MS);
    }
}

#[test]
fn the_path_is_never_empty_for_long_whichever_process_ends() {
    let mut steps = [0; 4];
    for seed in 0..200 {
        let mut world = World::new(seed);
        let mut last = Time::ZERO;
        for _ in 0..5_000 {
            let pause = world.random.below(300);
            world.now = world.now.after(Span::from_millis(pause));
            world.change();
            if world.now >= world.looks_at {
                world.look();
            }
            if world.has_path() {
                last = world.now;
            }
            let empty = world.now.since(last.max(world.began_at));
            assert!(empty <= EMPTY_MAX, "no path for {empty:?}, seed {seed}");
        }
        for (all, own) in steps.iter_mut().zip(world.steps) {
            *all += own;
        }
    }
    assert!(steps.iter().all(|&count| count > 1_000), "{steps:?}");
}

fn view<'a>(owners: &'a [Owner], slice: Option<&'a [Owner]>, has_label: bool) -> View<'a> {
    View {
        is_wanted: true,
        owners,
        slice,
        has_label,
        is_copied: !has_label,
    }
}

#[test]
fn a_revision_is_attached_by_slice_and_label_and_detached_in_the_other_order() {
    let mut attachment = Attachment::default();
    let own = [Owner(1)];
    let now = Time::ZERO;
    assert_eq!(attachment.next(now, &view(&own, None, false)), Step::Write);
    let written = view(&own, Some(&own), false);
    assert_eq!(written.state(), AttachmentState::Attaching);
    assert_eq!(attachment.next(now, &written), Step::SetLabel);
    let attached = view(&own, Some(&own), true);
    assert_eq!(attached.state(), AttachmentState::Attached);
    assert_eq!(attachment.next(now, &attached), Step::Rest(None));
    let unwanted = View {
        is_wanted: false,
        ..attached
    };
    assert_eq!(unwanted.state(), AttachmentState::Detaching);
    assert_eq!(attachment.next(now, &unwanted), Step::ClearLabel);
    let cleared = View {
        has_label: false,
        ..unwanted
    };
    // Only once Knative's own endpoints are mirrored again, but not without a time limit.
    let until = Time(2_000_000_000);
    assert_eq!(attachment.next(now, &cleared), Step::Rest(Some(until)));
    assert_eq!(attachment.next(until, &cleared), Step::DeleteSlice);
    let copied = View {
        is_copied: true,
        ..cleared
    };
    assert_eq!(attachment.next(now, &copied), Step::DeleteSlice);
    let gone = View {
        slice: None,
        ..copied
    };
    assert_eq!(gone.state(), AttachmentState::Detached);
    assert_eq!(attachment.next(now, &gone), Step::Rest(None));
}

#[test]
fn a_revision_without_a_pod_that_could_own_it_is_detached_after_five_seconds() {
    let mut attachment = Attachment::default();
    let own = [Owner(1)];
    let other = [Owner(2)];
    let empty = view(&[], Some(&own), true);
    let until = Time(5_000_000_000);
    assert_eq!(attachment.next(Time::ZERO, &empty), Step::Rest(Some(until)));
    // Another pod starts in time.
    let moved = view(&other, Some(&own), true);
    assert_eq!(attachment.next(Time(1), &moved), Step::Write);
    let begin = Time(2);
    assert!(matches!(
        attachment.next(begin, &empty),
        Step::Rest(Some(_))
    ));
    assert_eq!(attachment.next(Time(until.0 + 2), &empty), Step::ClearLabel);
    // A revision that was never attached is not attached without a pod.
    let mut attachment = Attachment::default();
    assert_eq!(
        attachment.next(begin, &view(&[], None, false)),
        Step::Rest(None)
    );
}
