//! The answer: one sentence for each rule, before everything that it rests on.
//!
//! **What holds.** A point is *yes* if each function's percentile is kept at the lower end of the 95 % interval of its
//! attainment over seeds; and *probably* if no function misses it at the upper end as well, but some are undecided: their interval meets the
//! percentile, so more seeds settle it. Then nine of ten functions are sure, or all that are undecided keep it on average. Else it is
//! *no*.
//!
//! **One value.** What was swept has one value that is answered: the least that is yes, or of none the least that is probably,
//! or of none the one that is nearest to it ([`Answer::order`]). The page and the tables show the same one.

mod next;

use serde::Serialize;

use super::answer::{Answer, Outcome};
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
    /// Of the value that is answered.
    pub outcome: Outcome,
    /// Whether the outcome is yes.
    pub holds: bool,
    /// The value of what was swept that is answered: of those that are yes, else probably, the most of `rate-scale`, the least of
    /// everything else; of a single run its GPUs. None where all are no.
    pub value: Option<f64>,
    /// GPUs in all at that value.
    pub gpus: Option<u32>,
    /// What they cost an hour.
    pub cost_per_hour: Option<f64>,
    /// What binds: at that value, at the next one that does not hold, or at the one that is nearest to holding.
    pub binds: Limit,
    /// All that in a sentence.
    pub sentence: String,
    /// What stands in the way one step further, and what makes the answer less sure; may be empty.
    pub more: String,
    /// Options of the command that would settle what this one leaves open; may be empty.
    pub next: String,
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
    let Some(at) = (0..answers.len()).min_by(|&one, &other| answers[one].order(answers[other]))
    else {
        unreachable!("a rule without runs is not asked for");
    };
    let shown = answers[at];
    let outcome = shown.outcome();
    // What does not hold although it is the next, one step short of enough.
    let short = match axis {
        _ if outcome == Outcome::No => None,
        None => None,
        Some(Axis::RateScale) => answers.get(at + 1).copied(),
        Some(_) => at.checked_sub(1).and_then(|at| answers.get(at)).copied(),
    };
    let (sentence, more) = match (axis, outcome) {
        _ if shown.stopped => (
            "No answer: it was stopped before the end of the first run.".to_owned(),
            String::new(),
        ),
        (None, _) => single(shown),
        (Some(axis), Outcome::Yes) => enough(answers, axis, shown, short),
        (Some(axis), Outcome::Probably) => perhaps(answers, axis, shown, short),
        (Some(axis), Outcome::No) => never(answers, axis, shown),
    };
    let next = if shown.stopped {
        String::new()
    } else {
        next::options(answers, axis, at)
    };
    let is_answered = outcome != Outcome::No && !shown.stopped;
    Verdict {
        rule: shown.rule,
        outcome,
        holds: shown.holds(),
        value: is_answered.then(|| value(shown, axis)),
        gpus: is_answered.then_some(shown.gpus),
        cost_per_hour: shown.cost_per_hour.filter(|_| is_answered),
        binds: short.unwrap_or(shown).binding.limit,
        sentence,
        more: join(&[&more, &next::sentence(&next)]),
        next,
    }
}

/// Sentences with spaces between.
fn join(sentences: &[&str]) -> String {
    let each = sentences.iter().map(|own| own.trim());
    let each: Vec<&str> = each.filter(|own| !own.is_empty()).collect();
    each.join(" ")
}

fn single(own: &Answer) -> (String, String) {
    match own.outcome() {
        Outcome::Yes => {
            let sentence = format!(
                "Yes: {} {} {}{}.",
                gpus(own),
                if own.gpus == 1 { "holds" } else { "hold" },
                all_objectives(own),
                costs(own),
            );
            let busy = Unit::Share.write(own.gpu_busy.mean);
            (sentence, format!("GPUs are taken {busy} of the time."))
        }
        Outcome::Probably => (
            format!("Probably: {} {}{}.", gpus(own), undecided(own), costs(own)),
            String::new(),
        ),
        Outcome::No => {
            let sentence = format!(
                "No: {} {} not hold every objective; what binds is {}.",
                gpus(own),
                if own.gpus == 1 { "does" } else { "do" },
                own.binding.limit.name(),
            );
            (sentence, join(&[&own.binding.sentence, &open(own)]))
        }
    }
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
    let nearest = format!(
        "Nearest is {}, with {} of {} functions that keep their objective and {} of requests in time:",
        named(shown, axis),
        shown.functions_keeping,
        shown.functions_called,
        Unit::Share.write(shown.attainment.mean),
    );
    (
        sentence,
        join(&[&nearest, &shown.binding.sentence, &open(shown)]),
    )
}

/// No value is sure, and one is not ruled out.
fn perhaps(
    answers: &[&Answer],
    axis: Axis,
    best: &Answer,
    short: Option<&Answer>,
) -> (String, String) {
    let sentence = format!(
        "Probably {}: {}{}; of {} none is sure.",
        named(best, axis),
        undecided(best),
        costs(best),
        range(answers, axis),
    );
    (
        sentence,
        short.map_or_else(String::new, |short| below(short, axis)),
    )
}

/// What binds one step short of what is answered.
fn below(short: &Answer, axis: Axis) -> String {
    let what = format!(
        "With {} what binds is {}:",
        named(short, axis),
        short.binding.limit.name()
    );
    join(&[&what, &short.binding.sentence, &open(short)])
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
        Some(short) if short.outcome() == Outcome::Probably => format!(
            "{} probably {} as well: {}.",
            capital(&named(short, axis)),
            if short.gpus > 1 && is_counted {
                "do"
            } else {
                "does"
            },
            undecided(short),
        ),
        Some(short) => below(short, axis),
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

/// "376 of 380 functions are sure to keep their objectives, 4 are undecided".
fn undecided(own: &Answer) -> String {
    if own.functions_called == 1 {
        return "whether the function keeps its objective is undecided: the interval over seeds meets it".to_owned();
    }
    let (are, open) = match own.functions_undecided {
        1 => ("is", "1".to_owned()),
        many => ("are", many.to_string()),
    };
    format!(
        "{} of {} functions are sure to keep their objectives, {open} {are} undecided",
        own.functions_keeping, own.functions_called
    )
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
    let count = own.functions_undecided;
    if count == 0 || own.seeds < 2 {
        return String::new();
    }
    #[expect(clippy::cast_precision_loss, reason = "to be read")]
    let functions = Unit::Functions.write(count as f64);
    format!(
        "Of those that miss, {functions} may keep: only the interval's lower end is below what is asked."
    )
}
