//! The answer: one sentence for each rule, before everything that it rests on.
//!
//! **What holds.** A point holds if each function's percentile is kept at the lower end of the 95 % interval of its
//! attainment over seeds. What is kept on average and not at that end is *open*: more seeds or a longer window settle it.

use serde::Serialize;

use super::answer::Answer;
use super::cluster::GPUS_MAX;
use super::limit::Limit;
use super::sweep::Axis;
use super::table::value;
use crate::statistics::Unit;

/// Where arrivals come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// A row of the trace for each: the same in every seed.
    Fixed,
    /// Drawn by each seed anew: from counts, or made up.
    Drawn,
}

impl Arrivals {
    /// What the intervals tell.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Fixed => {
                "The trace fixes the arrivals, so seeds differ in noise alone: intervals say nothing of busier days than its own."
            }
            Self::Drawn => "Each seed draws arrivals of its own.",
        }
    }
}

/// What is answered for one rule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// Which.
    pub rule: &'static str,
    /// Whether any point holds.
    pub holds: bool,
    /// The value of what was swept with which it does: the most of `rate-scale`, the least of everything else; of a single run
    /// its GPUs.
    pub value: Option<f64>,
    /// GPUs in all at that value.
    pub gpus: Option<u32>,
    /// What they cost an hour.
    pub cost_per_hour: Option<f64>,
    /// What binds: at that value, at the next one that does not hold, or where most functions keep their objective.
    pub binds: Limit,
    /// All that in a sentence.
    pub sentence: String,
    /// What stands in the way one step further, and what makes the answer less sure; may be empty.
    pub more: String,
}

/// For each rule, in the order in which they were run; `axis`: what was swept.
#[must_use]
pub fn verdicts(answers: &[Answer], axis: Option<Axis>) -> Vec<Verdict> {
    let mut rules: Vec<&'static str> = Vec::new();
    for own in answers {
        if !rules.contains(&own.rule) {
            rules.push(own.rule);
        }
    }
    let several = rules.len() > 1;
    let of_rule = |rule: &&'static str| {
        let own: Vec<&Answer> = answers.iter().filter(|own| own.rule == *rule).collect();
        let mut verdict = of(&own, axis);
        if several {
            verdict.sentence = format!("{rule}: {}", verdict.sentence);
        }
        verdict
    };
    rules.iter().map(of_rule).collect()
}

/// Of a rule's runs, which are not none, by rising value.
fn of(answers: &[&Answer], axis: Option<Axis>) -> Verdict {
    let whole: Vec<&Answer> = answers.iter().copied().filter(|own| !own.stopped).collect();
    // What was stopped says nothing beside what was not.
    let answers = if whole.is_empty() { answers } else { &whole };
    let at = match axis {
        Some(Axis::RateScale) => answers.iter().rposition(|own| own.holds()),
        _ => answers.iter().position(|own| own.holds()),
    };
    let best = at.map(|at| answers[at]);
    // What does not hold although it is the next, one step short of enough.
    let short = at.and_then(|at| match axis {
        Some(Axis::RateScale) => answers.get(at + 1).copied(),
        _ => answers.get(at.checked_sub(1)?).copied(),
    });
    let shown = best.or_else(|| {
        let keeping = |own: &&Answer| (own.functions_keeping, std::cmp::Reverse(own.gpus));
        answers.iter().copied().max_by_key(keeping)
    });
    let Some(shown) = shown else {
        unreachable!("a rule without runs is not asked for");
    };
    let (sentence, more) = match (axis, best) {
        _ if shown.stopped => (
            "No answer: it was stopped before the end of the first run.".to_owned(),
            String::new(),
        ),
        (None, _) => single(shown),
        (Some(axis), Some(best)) => enough(answers, axis, best, short),
        (Some(axis), None) => never(answers, axis, shown),
    };
    Verdict {
        rule: shown.rule,
        holds: best.is_some(),
        value: best.map(|own| value(own, axis)),
        gpus: best.map(|own| own.gpus),
        cost_per_hour: best.and_then(|own| own.cost_per_hour),
        binds: short.unwrap_or(shown).binding.limit,
        sentence,
        more,
    }
}

fn single(own: &Answer) -> (String, String) {
    if own.holds() {
        let sentence = format!(
            "Yes: {} {} {}{}.",
            gpus(own),
            if own.gpus == 1 { "holds" } else { "hold" },
            all_objectives(own),
            costs(own),
        );
        let fewer = if own.gpus_per_node > 1 {
            format!(
                " --sweep gpus=1..{} tells whether fewer do.",
                own.gpus_per_node
            )
        } else {
            String::new()
        };
        let busy = Unit::Share.write(own.gpu_busy.mean);
        return (
            sentence,
            format!("GPUs are taken {busy} of the time.{fewer}"),
        );
    }
    let sentence = format!(
        "No: {} {} not hold every objective; what binds is {}.",
        gpus(own),
        if own.gpus == 1 { "does" } else { "do" },
        own.binding.limit.name(),
    );
    let most = (own.gpus_per_node * 4).min(GPUS_MAX);
    let more = if own.binding.limit == Limit::Objective || most == own.gpus_per_node {
        String::new()
    } else {
        format!(
            " --sweep gpus={}..{most} tells whether more are enough.",
            own.gpus_per_node
        )
    };
    (
        sentence,
        format!("{}{}{more}", own.binding.sentence.trim_end(), open(own)),
    )
}

fn range(answers: &[&Answer], axis: Axis) -> String {
    match answers {
        [first, .., last] => format!("{} to {}", plain(first, axis), plain(last, axis)),
        [one] => plain(one, axis),
        [] => String::new(),
    }
}

/// No value holds.
fn never(answers: &[&Answer], axis: Axis, shown: &Answer) -> (String, String) {
    let sentence = format!(
        "No: with none of {} ({}) does every objective hold; what binds is {}.",
        range(answers, axis),
        axis.title(),
        shown.binding.limit.name(),
    );
    let more = format!(
        "Best is {}: {}{}",
        named(shown, axis),
        shown.binding.sentence.trim_end(),
        open(shown)
    );
    (sentence, more)
}

fn enough(
    answers: &[&Answer],
    axis: Axis,
    best: &Answer,
    short: Option<&Answer>,
) -> (String, String) {
    let is_counted = matches!(axis, Axis::Gpus | Axis::Nodes);
    let which = match axis {
        Axis::RateScale => "the most",
        Axis::Gpus | Axis::Nodes => "the fewest",
        Axis::ModelsGb | Axis::HostGbPerS => "the least",
    };
    let sentence = format!(
        "{} {} {}{}; {which} of {}.",
        capital(&named(best, axis)),
        if best.gpus > 1 && is_counted {
            "hold"
        } else {
            "holds"
        },
        all_objectives(best),
        costs(best),
        range(answers, axis),
    );
    let mut more = match short {
        Some(short) => format!(
            "With {} what binds is {}: {}{}",
            named(short, axis),
            short.binding.limit.name(),
            short.binding.sentence.trim_end(),
            open(short),
        ),
        None if axis == Axis::RateScale => "More was not tried.".to_owned(),
        None if is_counted && best.gpus == 1 => String::new(),
        None => "Less was not tried.".to_owned(),
    };
    let at = value(best, Some(axis));
    let is_odd = |own: &&&Answer| {
        let own_at = value(own, Some(axis));
        let beyond = if axis == Axis::RateScale {
            own_at < at
        } else {
            own_at > at
        };
        beyond && !own.holds()
    };
    if let Some(odd) = answers.iter().find(is_odd) {
        let does = if is_counted { "do" } else { "does" };
        more.push_str(&format!(
            " Beware: {} {does} not, so this is near the edge.",
            named(odd, axis)
        ));
    }
    (sentence, more)
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|own| own.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

fn plain(own: &Answer, axis: Axis) -> String {
    // As it was asked for.
    value(own, Some(axis)).to_string()
}

fn gpus(own: &Answer) -> String {
    let gpus = Unit::Gpus.write(f64::from(own.gpus));
    if own.nodes > 1 {
        format!("{gpus} ({} nodes of {})", own.nodes, own.gpus_per_node)
    } else {
        gpus
    }
}

/// A point by what was swept.
fn named(own: &Answer, axis: Axis) -> String {
    match axis {
        Axis::Gpus | Axis::Nodes => gpus(own),
        Axis::ModelsGb => format!("{} GB of each GPU for models", plain(own, axis)),
        Axis::HostGbPerS => format!("a link of {} GB/s", plain(own, axis)),
        Axis::RateScale => format!("{} times the trace's rate", plain(own, axis)),
    }
}

fn all_objectives(own: &Answer) -> String {
    let (functions, each) = match own.functions_called {
        1 => ("the function's objective".to_owned(), ""),
        many => (format!("the objectives of all {many} functions"), "each "),
    };
    if own.seeds > 1 {
        format!(
            "{functions}, {each}at the worse end of its 95 % interval over {} seeds",
            own.seeds
        )
    } else {
        format!("{functions} under one seed, which has no interval")
    }
}

fn costs(own: &Answer) -> String {
    own.cost_per_hour
        .map_or_else(String::new, |hour| format!(", for {hour:.2} an hour"))
}

/// Misses that more seeds may settle.
fn open(own: &Answer) -> String {
    let count = own.functions.iter().filter(|of| of.is_open()).count();
    if count == 0 || own.seeds < 2 {
        return String::new();
    }
    #[expect(clippy::cast_precision_loss, reason = "to be read")]
    let functions = Unit::Functions.write(count as f64);
    format!(
        " Of those that miss, {functions} may keep: only the interval's lower end is below what is asked, and more --seeds or a \
         longer window would settle it."
    )
}
