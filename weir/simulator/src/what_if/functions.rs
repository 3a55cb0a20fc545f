//! The functions: what a user's file says of models and objectives.
//!
//! A function's settings are, key by key, those of the **first** `[[function]]` whose `name` fits its name in the trace
//! (`*` stands for any text), then what the trace says of it, then `[default]`. A function without a model of its own
//! gets those of `[[model]]` in turns: function i of the trace has model i mod their number.

use serde::Deserialize;
use toml::Spanned;

use super::place::{ABOVE_ZERO, InputError, NOT_NEGATIVE, POSITIVE, Text, ZERO_OR_MORE, nearest};
use crate::node::Hardware;
use crate::statistics::Percentile;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    models: Option<Spanned<String>>,
    #[serde(default)]
    default: GoalText,
    #[serde(default)]
    model: Vec<ModelText>,
    #[serde(default)]
    function: Vec<FunctionText>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct GoalText {
    model: Option<Spanned<String>>,
    weights_mb: Option<Spanned<f64>>,
    execution_ms: Option<Spanned<f64>>,
    objective_ms: Option<Spanned<f64>>,
    objective_factor: Option<Spanned<f64>>,
    percentile: Option<Spanned<f64>>,
    work: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelText {
    name: Spanned<String>,
    weights_mb: Spanned<f64>,
    execution_ms: Option<Spanned<f64>>,
    native_ms: Option<Spanned<f64>>,
    footprint_mb: Option<Spanned<f64>>,
    ms_per_input_token: Option<Spanned<f64>>,
    ms_per_output_token: Option<Spanned<f64>>,
    in_turn: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FunctionText {
    name: Spanned<String>,
    leave_out: Option<bool>,
    model: Option<Spanned<String>>,
    weights_mb: Option<Spanned<f64>>,
    execution_ms: Option<Spanned<f64>>,
    objective_ms: Option<Spanned<f64>>,
    objective_factor: Option<Spanned<f64>>,
    percentile: Option<Spanned<f64>>,
    work: Option<Spanned<String>>,
}

/// An objective as it is written: the longer of both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Objective {
    /// In ms; 0: not said.
    pub ms: f64,
    /// In multiples of the function's execution; 0: not said.
    pub factor: f64,
}

/// By what the executions of a function's requests differ. A trace's times are of the hardware it was taken on; the file
/// of functions states what the user's GPUs take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Times {
    /// By nothing but noise: each takes the function's execution.
    Stated,
    /// Each takes what the trace says of it: its service time, or its tokens by the model's times for them.
    Trace,
    /// Their mean is the function's execution, and they differ from it by the factors by which the trace's do from theirs.
    #[default]
    Relative,
}

impl Times {
    const NAMES: [(&str, Self); 3] = [
        ("stated", Self::Stated),
        ("trace", Self::Trace),
        ("trace-relative", Self::Relative),
    ];
}

/// What is said of functions; what is not said is left to others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Goal {
    /// Its model, by its place in [`Functions::models`].
    pub model: Option<usize>,
    /// Bytes of weights over 10⁶.
    pub weights_mb: Option<f64>,
    /// Execution with the model resident, ms.
    pub execution_ms: Option<f64>,
    /// Within which requests are to be answered.
    pub objective: Option<Objective>,
    /// How many of them.
    pub percentile: Option<Percentile>,
    /// By what its requests' executions differ.
    pub times: Option<Times>,
}

/// A model.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Its name.
    pub name: String,
    /// Bytes of weights over 10⁶.
    pub weights_mb: f64,
    /// Execution with the model resident, ms; none: the trace's service times or tokens say it.
    pub execution_ms: Option<f64>,
    /// In a process that has its GPU to itself, ms; none: the same.
    pub native_ms: Option<f64>,
    /// What such a process takes of a GPU over 10⁶ bytes; none: weights and residue.
    pub footprint_mb: Option<f64>,
    /// What a token of the prompt and of the answer take, ms.
    pub per_token_ms: [f64; 2],
    /// Functions that name no model get it, and others of which this is so, in turns.
    pub in_turn: bool,
}

/// Settings of functions whose name fits.
#[derive(Clone, Debug, PartialEq)]
pub struct Pattern {
    /// With `*` for any text.
    pub name: String,
    /// They are not run at all.
    pub leave_out: bool,
    /// Their settings.
    pub goal: Goal,
}

/// See the [module](self).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Functions {
    /// All models.
    pub models: Vec<Model>,
    /// In the order of the file: the first that fits is taken.
    pub patterns: Vec<Pattern>,
    /// Of all others.
    pub default: Goal,
}

struct Reader<'a> {
    text: Text<'a>,
    models: Vec<Model>,
}

impl Reader<'_> {
    fn positive(&self, value: Option<&Spanned<f64>>) -> Result<Option<f64>, InputError> {
        let read = |value| self.text.number(value, POSITIVE, ABOVE_ZERO);
        value.map(read).transpose()
    }

    fn goal(&self, said: &GoalText) -> Result<Goal, InputError> {
        let model = match &said.model {
            None => None,
            Some(name) => Some(self.model(name)?),
        };
        let ms = self.positive(said.objective_ms.as_ref())?;
        let factor = self.positive(said.objective_factor.as_ref())?;
        let objective = (ms.is_some() || factor.is_some()).then(|| Objective {
            ms: ms.unwrap_or(0.0),
            factor: factor.unwrap_or(0.0),
        });
        Ok(Goal {
            model,
            weights_mb: self.positive(said.weights_mb.as_ref())?,
            execution_ms: self.positive(said.execution_ms.as_ref())?,
            objective,
            percentile: said
                .percentile
                .as_ref()
                .map(|value| self.percentile(value))
                .transpose()?,
            times: said
                .work
                .as_ref()
                .map(|name| self.times(name))
                .transpose()?,
        })
    }

    fn percentile(&self, value: &Spanned<f64>) -> Result<Percentile, InputError> {
        // The same bounds as of the annotation `slo-percentile`.
        let allowed = "a percentile from 50 to 99.9";
        let percent = self.text.number(value, 50.0..99.900_001, allowed)?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "50 to 99.9"
        )]
        let thousandths = libm::round(percent * 1e3) as u32;
        Percentile::from_thousandths(thousandths)
            .map_err(|_| self.text.wrong(value.span(), &percent.to_string(), allowed))
    }

    fn times(&self, name: &Spanned<String>) -> Result<Times, InputError> {
        let found = Times::NAMES.iter().find(|own| own.0 == name.get_ref());
        found.map(|own| own.1).ok_or_else(|| {
            let found = format!("{:?}", name.get_ref());
            let allowed = "\"stated\", \"trace\" or \"trace-relative\"";
            self.text.wrong(name.span(), &found, allowed)
        })
    }

    fn model(&self, name: &Spanned<String>) -> Result<usize, InputError> {
        let found = self
            .models
            .iter()
            .position(|model| model.name == *name.get_ref());
        found.ok_or_else(|| {
            let names: Vec<_> = self
                .models
                .iter()
                .map(|model| model.name.as_str())
                .collect();
            let allowed = if names.is_empty() {
                "a [[model]] of that name".to_owned()
            } else {
                match nearest(name.get_ref(), names.iter().copied()) {
                    Some(near) => format!("{near:?}, or another one of {},", names.join(", ")),
                    None => format!("one of {}", names.join(", ")),
                }
            };
            let found = format!("{:?}", name.get_ref());
            self.text.wrong(name.span(), &found, &allowed)
        })
    }

    fn add_model(&mut self, said: &ModelText) -> Result<(), InputError> {
        let name = said.name.get_ref().clone();
        if name.is_empty() || self.models.iter().any(|model| model.name == name) {
            let found = format!("{name:?}");
            let allowed = "a name that no other model has";
            return Err(self.text.wrong(said.name.span(), &found, allowed));
        }
        let token = |value: &Option<Spanned<f64>>| match value {
            None => Ok(0.0),
            Some(value) => self.text.number(value, NOT_NEGATIVE, ZERO_OR_MORE),
        };
        let model = Model {
            name,
            weights_mb: self.text.number(&said.weights_mb, POSITIVE, ABOVE_ZERO)?,
            execution_ms: self.positive(said.execution_ms.as_ref())?,
            native_ms: self.positive(said.native_ms.as_ref())?,
            footprint_mb: self.positive(said.footprint_mb.as_ref())?,
            per_token_ms: [
                token(&said.ms_per_input_token)?,
                token(&said.ms_per_output_token)?,
            ],
            in_turn: said.in_turn.unwrap_or(true),
        };
        self.models.push(model);
        Ok(())
    }
}

impl Functions {
    /// From TOML; `file` is what errors call it.
    ///
    /// # Errors
    /// What is wrong, with line and key.
    pub fn from_toml(file: &str, text: &str) -> Result<Self, InputError> {
        let text = Text { file, text };
        let said: File = text.read()?;
        let mut reader = Reader {
            text,
            models: Vec::new(),
        };
        for model in &said.model {
            reader.add_model(model)?;
        }
        if let Some(models) = &said.models {
            if models.get_ref() != "torpor" {
                let found = format!("{:?}", models.get_ref());
                return Err(text.wrong(models.span(), &found, "\"torpor\""));
            }
            // Models of the user's own come first, and alone are given in turn.
            let in_turn = !reader.models.iter().any(|model| model.in_turn);
            for model in Hardware::torpor().models {
                if reader.models.iter().all(|own| own.name != model.name) {
                    reader.models.push(Model {
                        name: model.name,
                        weights_mb: model.weights_mb,
                        execution_ms: Some(model.execution_ms),
                        native_ms: Some(model.native_ms),
                        footprint_mb: Some(model.footprint_mb),
                        per_token_ms: [0.0; 2],
                        in_turn,
                    });
                }
            }
        }
        let default = reader.goal(&said.default)?;
        let mut patterns = Vec::with_capacity(said.function.len());
        for function in said.function {
            let goal = GoalText {
                model: function.model,
                weights_mb: function.weights_mb,
                execution_ms: function.execution_ms,
                objective_ms: function.objective_ms,
                objective_factor: function.objective_factor,
                percentile: function.percentile,
                work: function.work,
            };
            patterns.push(Pattern {
                name: function.name.into_inner(),
                leave_out: function.leave_out.unwrap_or(false),
                goal: reader.goal(&goal)?,
            });
        }
        Ok(Self {
            models: reader.models,
            patterns,
            default,
        })
    }

    /// The settings of the first pattern that fits a name.
    #[must_use]
    pub fn pattern(&self, name: &str) -> Option<&Pattern> {
        self.patterns
            .iter()
            .find(|pattern| fits(&pattern.name, name))
    }

    /// Function number `at` has this model if none is named.
    #[must_use]
    pub fn in_turn(&self, at: usize) -> Option<usize> {
        let mut turns = (0..self.models.len()).filter(|&model| self.models[model].in_turn);
        let count = turns.clone().count();
        turns.nth(at.checked_rem(count)?)
    }

    /// A model by its name.
    #[must_use]
    pub fn model(&self, name: &str) -> Option<usize> {
        self.models.iter().position(|model| model.name == name)
    }
}

/// Whether a name fits a pattern, in which `*` stands for any text.
fn fits(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, name, expected) in [
            ("chat", "chat", true),
            ("chat", "chats", false),
            ("*", "", true),
            ("ch*t", "chat", true),
            ("ch*t", "ch", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("*b", "ab", true),
            ("a*a", "a", false),
        ] {
            assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
        }
    }

    const OWN: &str = "[default]\nobjective_factor = 5\n[[model]]\nname = \"a\"\nweights_mb = 10\n\
                       [[function]]\nname = \"x*\"\nmodel = \"a\"\nobjective_ms = 20\npercentile = 99\n";

    #[test]
    fn the_first_that_fits_is_taken() {
        let functions = Functions::from_toml("f", OWN).unwrap();
        let goal = &functions.pattern("xyz").unwrap().goal;
        assert_eq!(
            goal.objective,
            Some(Objective {
                ms: 20.0,
                factor: 0.0
            })
        );
        assert_eq!(goal.percentile, Some(Percentile::P99));
        assert_eq!(goal.model, Some(0));
        assert!(functions.pattern("ax").is_none());
        assert_eq!(
            functions.default.objective,
            Some(Objective {
                ms: 0.0,
                factor: 5.0
            })
        );
        let both = format!("models = \"torpor\"\n{OWN}");
        let both = Functions::from_toml("f", &both).unwrap();
        assert_eq!(both.models.len(), 9);
        assert_eq!((both.in_turn(7), both.model("Bert-qa")), (Some(0), Some(8)));
        let theirs = Functions::from_toml("f", "models = \"torpor\"\n").unwrap();
        assert_eq!(theirs.in_turn(9), Some(1));
        let aside = OWN.replacen("weights_mb", "in_turn = false\nweights_mb", 1);
        let aside = Functions::from_toml("f", &aside).unwrap();
        assert_eq!((aside.in_turn(3), aside.models.len()), (None, 1));
    }

    #[test]
    fn what_is_wrong_is_told_with_line_and_key() {
        for (from, to, said) in [
            (
                "model = \"a\"",
                "model = \"b\"",
                "f: line 8: function.model is \"b\": one of a",
            ),
            (
                "weights_mb = 10",
                "weights_mb = -1",
                "line 5: model.weights_mb is -1",
            ),
            ("weights_mb = 10", "", "missing field `weights_mb`"),
            (
                "percentile = 99",
                "percentile = 100",
                "line 10: function.percentile is 100",
            ),
            (
                "percentile",
                "percentil",
                "line 10: unknown field `percentil`",
            ),
            ("name = \"a\"", "name = \"\"", "line 4: model.name is \"\""),
        ] {
            assert!(OWN.contains(from), "{from}");
            let error = Functions::from_toml("f", &OWN.replacen(from, to, 1)).unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
        }
    }
}
