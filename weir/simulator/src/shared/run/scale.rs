//! Scaling: the scalers' decisions, and the start and removal of pods.

use policy::rectangles::{FunctionId, InstanceId};
use policy::scaling::profile::Point;
use policy::scaling::{Action, place};
use policy::tokens::{Quota, SM_WHOLE, Share};
use policy::{Span, Time};

use super::super::pods::Phase;
use super::super::settings::Lending;
use super::{Event, Run};
use crate::generate::nanos;

impl Run<'_> {
    pub(super) fn decide(&mut self) {
        let now = self.agenda.now();
        let Some(scaling) = self.scaling else { return };
        for function in 0..self.functions.len() {
            let own = &mut self.functions[function];
            let pods = &self.pods;
            let waiting = own.held.len()
                + (own.ready.iter().map(|&pod| pods[pod].queue.len())).sum::<usize>();
            let Some(scaled) = &mut own.scaled else {
                continue;
            };
            let load = scaled.load.predict(now, waiting as u64);
            let mut actions = std::mem::take(&mut self.actions);
            let _again = scaled.scaler.decide(now, load, &mut actions);
            for action in actions.drain(..) {
                match action {
                    Action::Add { point, count, .. } => {
                        for _ in 0..count {
                            let number = u32::try_from(function).unwrap_or(u32::MAX);
                            self.start(number, &point, None);
                        }
                    }
                    Action::Remove { instance, .. } => self.dismiss(instance.0),
                    Action::Shortfall { .. } => {}
                }
            }
            self.actions = actions;
        }
        self.agenda.add(now.after(scaling.every), Event::Decide);
    }

    /// Starts a pod if a GPU has room for it; it is ready after a cold start, or at `ready`.
    pub(super) fn start(&mut self, function: u32, point: &Point, ready: Option<Time>) {
        let now = self.agenda.now();
        let Some(scaling) = self.scaling else { return };
        let pod = self.pods.next();
        let own = &mut self.functions[function as usize];
        let Some(scaled) = &mut own.scaled else {
            return;
        };
        let (instance, id) = (InstanceId(pod), FunctionId(function));
        let points = scaled.scaler.points();
        let Ok((point, placement)) = place(&mut self.packer, instance, id, point, points) else {
            self.outcome.unplaced += 1;
            return;
        };
        let name = &self.models.models[own.model].name;
        let mean = scaling
            .cold_start
            .unwrap_or_else(|| self.models.cold_start(name));
        let factor = libm::exp(self.settings.noise.cold_start * own.starts.normal());
        #[expect(clippy::cast_precision_loss, reason = "seconds")]
        let cold = Span(nanos(mean.0 as f64 * factor));
        let at = ready.unwrap_or_else(|| now.after(cold));
        // The scaler expects it after the mean.
        let expected = ready.unwrap_or_else(|| now.after(mean));
        let added = scaled.scaler.add(instance, point, expected);
        debug_assert!(added.is_ok(), "the number must be new");
        let limit = match scaling.lending {
            Lending::Nothing => point.quota,
            Lending::WhatIsLeft => Share::WHOLE,
        };
        let quota = Quota::new(point.quota, limit);
        debug_assert!(quota.is_ok(), "a limit must not be below its request");
        let Ok(quota) = quota else { return };
        self.count_pods(now);
        self.area += area(&point);
        let taken = (self.pods).add(function, placement.slot.0, point.sm, quota, None);
        debug_assert_eq!(taken, pod, "the pod must get the reserved number");
        self.outcome.started += 1;
        let start = self.outcome.started;
        self.pods[pod].start = start;
        self.outcome.pods_max = self.outcome.pods_max.max(self.pods.count());
        self.agenda.add(at, Event::Ready(pod, start));
    }

    /// Stops routing requests to a pod, and removes it when it has answered those it has.
    pub(super) fn dismiss(&mut self, pod: u32) {
        let own = &mut self.pods[pod];
        own.phase = Phase::Leaving;
        let is_idle = own.serves.is_none();
        let function = &mut self.functions[own.function as usize];
        function.ready.retain(|&other| other != pod);
        if is_idle {
            self.leave(pod);
        }
    }

    pub(super) fn leave(&mut self, pod: u32) {
        let now = self.agenda.now();
        self.count_pods(now);
        let own = &self.pods[pod];
        let (gpu, function) = (own.gpu, own.function);
        self.area -= f64::from(own.quota.request().parts_per_million()) / 1e6 * f64::from(own.sm)
            / f64::from(SM_WHOLE);
        if let Some(member) = own.member {
            self.gpus[gpu as usize].remove(now, member);
        }
        if let Some(scaled) = &mut self.functions[function as usize].scaled {
            scaled.scaler.gone(InstanceId(pod));
        }
        let _removed = self.packer.remove(InstanceId(pod));
        self.pods.remove(pod);
        self.plan(gpu);
    }

    /// Adds the lifetimes of pods until now.
    pub(super) fn count_pods(&mut self, now: Time) {
        let passed = now.since(self.counted_to).as_secs_f64();
        self.counted_to = now;
        self.outcome.pod_seconds += passed * f64::from(self.pods.count());
        self.outcome.gpu_seconds += passed * self.area;
    }
}

/// Returns window × SMs of a point, in whole GPUs.
fn area(point: &Point) -> f64 {
    f64::from(point.quota.parts_per_million()) / 1e6 * f64::from(point.sm) / f64::from(SM_WHOLE)
}
