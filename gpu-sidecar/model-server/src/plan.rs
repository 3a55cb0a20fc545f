//! Kernels of a batch, and the units of output completed after each step.
//!
//! A request's kernels are its model's, followed by kernels for the time of its cost, cut into pieces. A batch is one piece of
//! work for all its members, as in a server with static batching: it takes the time of its longest member alone, plus a part
//! (`growth`) of the time of each other member. All members end together.
//!
//! When a member's output is streamed, the batch has as many steps as the longest streamed output has units. The kernels of the
//! output's cost are spread over the steps, each step with its own; a model without such a cost spreads all its kernels.

use crate::cost::{Cost, SERVICE_MAX};
use crate::models::Model;
use crate::request::Request;

/// Maximum number of units of a streamed answer: each one is a line.
pub(crate) const STREAMED_MAX: u64 = 100_000;
/// Maximum number of pieces of a cost, regardless of their length.
const PIECES_MAX: u64 = 100_000;
const WHOLE: u128 = 1_000_000;

/// Settings for planning batches.
#[derive(Clone, Debug)]
pub(crate) struct Planner {
    pub(crate) model: Model,
    pub(crate) cost: Cost,
    /// Longest kernel of a cost, in ns.
    pub(crate) piece_ns: u64,
    /// Time added by each further member, in millionths of its own time.
    pub(crate) growth_millionths: u32,
}

/// Kernels and steps of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Time of each kernel running alone, in ns, in order.
    kernels: Vec<u64>,
    /// Number of kernels completed after each step.
    marks: Vec<usize>,
}

impl Planner {
    /// Returns the kernels and steps for a batch of these requests, its members.
    pub(crate) fn plan(&self, members: &[Request]) -> Plan {
        let count = u128::try_from(members.len().max(1)).unwrap_or(u128::MAX);
        let growth = u128::from(self.growth_millionths);
        let factor = WHOLE + growth * (count - 1);
        let mut kernels = Vec::new();
        for group in &self.model.kernels {
            let ns = narrow(u128::from(group.ns) * factor / WHOLE);
            kernels.extend((0..group.count).map(|_| ns));
        }
        let parts = |member: &Request| {
            (
                u128::from(self.cost.before_output_ns(member.work)),
                u128::from(self.cost.output_ns(member.work)),
            )
        };
        let longest = members.iter().map(parts).max_by_key(|(a, b)| a + b);
        let (first, output) = longest.unwrap_or_default();
        let (mut first_sum, mut output_sum) = (0, 0);
        for (a, b) in members.iter().map(parts) {
            first_sum += a;
            output_sum += b;
        }
        // The longest member's time, and a part of that of all others.
        let batch = |own: u128, sum: u128| (own * WHOLE + growth * (sum - own)) / WHOLE;
        let (first, output) = (batch(first, first_sum), batch(output, output_sum));
        // Bounded regardless of the requested amount.
        let max = SERVICE_MAX.as_nanos();
        let first = first.min(max);
        let output = output.min(max - first);

        let streamed = members.iter().filter(|member| member.stream);
        let steps = streamed.map(|member| member.work.output).max();
        let steps = steps.unwrap_or(1).clamp(1, STREAMED_MAX);
        if steps == 1 || output == 0 {
            self.cut(narrow(first + output), &mut kernels);
            let all = kernels.len();
            let marks = (1..=steps).map(|step| part(all, step, steps)).collect();
            return Plan { kernels, marks };
        }
        self.cut(narrow(first), &mut kernels);
        let output = narrow(output);
        let mut marks = Vec::new();
        let mut done = 0;
        for step in 1..=steps {
            let until = narrow(u128::from(output) * u128::from(step) / u128::from(steps));
            self.cut(until - done, &mut kernels);
            done = until;
            marks.push(kernels.len());
        }
        Plan { kernels, marks }
    }

    /// Cuts a time into equal pieces, none longer than [`Planner::piece_ns`] unless there would be more than [`PIECES_MAX`].
    fn cut(&self, ns: u64, kernels: &mut Vec<u64>) {
        let pieces = ns.div_ceil(self.piece_ns.max(1)).min(PIECES_MAX);
        let until = |piece: u64| narrow(u128::from(ns) * u128::from(piece) / u128::from(pieces));
        kernels.extend((0..pieces).map(|piece| until(piece + 1) - until(piece)));
    }
}

impl Plan {
    /// Returns the number of steps: at least one.
    pub(crate) fn steps(&self) -> usize {
        self.marks.len()
    }

    /// Returns the number of kernels.
    pub(crate) fn count(&self) -> usize {
        self.kernels.len()
    }

    /// Returns the times of each step's kernels, in ns.
    pub(crate) fn kernels(&self) -> impl Iterator<Item = &[u64]> {
        let begins = std::iter::once(0).chain(self.marks.iter().copied());
        begins
            .zip(&self.marks)
            .map(|(begin, &end)| &self.kernels[begin..end])
    }
}

/// Returns how many of `output` units are complete after `step` of a batch's `steps`.
pub(crate) fn units_after(step: usize, steps: usize, output: u64) -> u64 {
    let wide = |n: usize| u128::try_from(n).unwrap_or(u128::MAX);
    narrow(u128::from(output) * wide(step) / wide(steps.max(1)))
}

fn part(all: usize, step: u64, steps: u64) -> usize {
    let wide = u128::try_from(all).unwrap_or(u128::MAX);
    let part = (wide * u128::from(step)).div_ceil(u128::from(steps));
    usize::try_from(part).unwrap_or(all)
}

/// Converts a value, saturating at the maximum.
fn narrow(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Work;

    fn planner(cost: Cost) -> Planner {
        Planner {
            model: Model::generic(),
            cost,
            piece_ns: 1_000_000,
            growth_millionths: 250_000,
        }
    }

    fn request(input: u64, output: u64, stream: bool) -> Request {
        Request {
            work: Work { input, output },
            seed: 0,
            stream,
        }
    }

    fn total(plan: &Plan) -> u64 {
        plan.kernels().flatten().sum()
    }

    const COST: Cost = Cost {
        fixed_ns: 2_500_000,
        per_input_ns: 1_000,
        per_output_ns: 3_000_000,
    };

    #[test]
    fn a_request_takes_its_service_time_in_pieces() {
        let planner = planner(COST);
        for (input, output) in [(0, 0), (1, 1), (1_000, 7), (u64::MAX, 3)] {
            let request = request(input, output, false);
            let plan = planner.plan(&[request]);
            let service = COST.service_time(request.work);
            assert_eq!(u128::from(total(&plan)), service.as_nanos());
            assert_eq!(plan.steps(), 1);
            let longest = plan.kernels().flatten().max();
            assert!(input == u64::MAX || longest <= Some(&1_000_000));
        }
        // 600 s in pieces of a millisecond would be 600,000.
        let most = planner.plan(&[request(u64::MAX, 3, false)]);
        assert_eq!(most.kernels().flatten().count(), 100_000);
    }

    #[test]
    fn a_streamed_request_has_a_step_for_each_unit() {
        let plan = planner(COST).plan(&[request(500, 4, true)]);
        let steps: Vec<u64> = plan.kernels().map(|step| step.iter().sum()).collect();
        // The first step includes the cost before the first unit.
        assert_eq!(steps, [6_000_000, 3_000_000, 3_000_000, 3_000_000]);
        // An empty stream has one step.
        assert_eq!(planner(COST).plan(&[request(500, 0, true)]).steps(), 1);
    }

    #[test]
    fn a_model_spreads_its_kernels_over_the_units() {
        let planner = Planner {
            model: Model::named("resnet-50").unwrap(),
            ..planner(Cost::default())
        };
        let plan = planner.plan(&[request(0, 10, true)]);
        let steps: Vec<usize> = plan.kernels().map(<[u64]>::len).collect();
        assert_eq!(steps.iter().sum::<usize>(), 174);
        assert!(steps.iter().all(|n| (17..=18).contains(n)), "{steps:?}");
        assert_eq!(total(&plan), 9_000_000);
    }

    #[test]
    fn each_further_member_adds_a_part_of_its_time() {
        let model = Planner {
            model: Model::named("resnet-50").unwrap(),
            ..planner(Cost::default())
        };
        let four = model.plan(&[request(0, 0, false); 4]);
        let factor = 9_000_000 * 7 / 4;
        assert!(
            total(&four).abs_diff(factor) < 174,
            "rounded down per kernel"
        );

        let planner = planner(COST);
        let (short, long) = (request(0, 1, false), request(0, 9, false));
        let batch = planner.plan(&[short, long, short]);
        let alone = |request| total(&planner.plan(&[request]));
        assert_eq!(total(&batch), alone(long) + 2 * alone(short) / 4);
    }

    #[test]
    fn members_of_a_batch_end_together() {
        let plan = planner(COST).plan(&[
            request(0, 2, true),
            request(0, 8, true),
            request(0, 99, false),
        ]);
        assert_eq!(plan.steps(), 8);
        let units: Vec<u64> = (1..=8).map(|step| units_after(step, 8, 2)).collect();
        assert_eq!(units, [0, 0, 0, 1, 1, 1, 1, 2]);
        assert_eq!(units_after(8, 8, u64::MAX), u64::MAX);
    }
}
