//! The functions: models and objectives from a user's file.
//!
//! A function's settings are, key by key, those of the **first** `[[function]]` with a `name` that matches its name in the trace
//! (`*` matches any text), then those of the trace, then `[default]`. Functions without a model of their own
//! are assigned those of `[[model]]` in turn: function i of the trace has model i mod their number.

use serde::Deserialize;
use toml::Spanned;

use super::input::{ABOVE_ZERO, InputError, NOT_NEGATIVE, POSITIVE, Text, ZERO_OR_MORE, nearest};
use crate::node::Hardware;
use crate::statistics::Percentile;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    models: Option<Spanned<String>>,
    #[serde(default)]
    default: SettingsText,
    #[serde(default)]
    model: Vec<ModelText>,
    #[serde(default)]
    function: Vec<FunctionText>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SettingsText {
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

/// An objective as written in the file: the longer of both parts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Objective {
    /// Time in milliseconds; 0 if not stated.
    pub ms: f64,
    /// Multiple of the function's execution time; 0 if not stated.
    pub factor: f64,
}

/// Variation of the execution times of a function's requests. A trace's times are those of the hardware on which it was taken;
/// the file of functions states the times on the user's GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Times {
    /// Every request takes the function's execution time, apart from noise.
    Stated,
    /// Every request takes the time that the trace states: its service time, or its tokens multiplied by the model's times.
    Trace,
    /// The mean is the function's execution time, and requests vary by the same factors as in the trace.
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

/// Settings of functions; those that are `None` are taken from elsewhere.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FunctionSettings {
    /// Index into [`Functions::models`].
    pub model: Option<usize>,
    /// Size of the weights, in units of 10⁶ bytes.
    pub weights_mb: Option<f64>,
    /// Execution time with the model resident, in milliseconds.
    pub execution_ms: Option<f64>,
    /// Time within which requests are to be answered.
    pub objective: Option<Objective>,
    /// Percentile of requests that must be in time.
    pub percentile: Option<Percentile>,
    /// Variation of the requests' execution times.
    pub times: Option<Times>,
}

/// A model of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Name by which functions refer to the model.
    pub name: String,
    /// Size of the weights, in units of 10⁶ bytes.
    pub weights_mb: f64,
    /// Execution time with the model resident, in milliseconds; `None` if it follows from the trace.
    pub execution_ms: Option<f64>,
    /// Execution time in a process with a GPU to itself, in milliseconds; `None` if it is the same.
    pub native_ms: Option<f64>,
    /// GPU memory of such a process, in units of 10⁶ bytes; `None` for weights and residue.
    pub footprint_mb: Option<f64>,
    /// Time for each token of the prompt and of the answer, in milliseconds.
    pub per_token_ms: [f64; 2],
    /// Whether functions without a model of their own are assigned this one, in turn with the others.
    pub in_turn: bool,
}

/// Settings of functions with matching names.
#[derive(Clone, Debug, PartialEq)]
pub struct Pattern {
    /// Pattern of names, in which `*` matches any text.
    pub name: String,
    /// Whether the functions are excluded from runs.
    pub leave_out: bool,
    /// Settings of the functions.
    pub settings: FunctionSettings,
}

/// Models and settings of functions; see the [module](self).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Functions {
    /// Models of the file, and Torpor's if requested.
    pub models: Vec<Model>,
    /// Patterns in the order of the file, of which the first match applies.
    pub patterns: Vec<Pattern>,
    /// Settings for keys that neither a pattern nor the trace states.
    pub default: FunctionSettings,
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

    fn settings(&self, text: &SettingsText) -> Result<FunctionSettings, InputError> {
        let model = match &text.model {
            None => None,
            Some(name) => Some(self.model(name)?),
        };
        let ms = self.positive(text.objective_ms.as_ref())?;
        let factor = self.positive(text.objective_factor.as_ref())?;
        let objective = (ms.is_some() || factor.is_some()).then(|| Objective {
            ms: ms.unwrap_or(0.0),
            factor: factor.unwrap_or(0.0),
        });
        Ok(FunctionSettings {
            model,
            weights_mb: self.positive(text.weights_mb.as_ref())?,
            execution_ms: self.positive(text.execution_ms.as_ref())?,
            objective,
            percentile: text
                .percentile
                .as_ref()
                .map(|value| self.percentile(value))
                .transpose()?,
            times: text
                .work
                .as_ref()
                .map(|name| self.times(name))
                .transpose()?,
        })
    }

    fn percentile(&self, value: &Spanned<f64>) -> Result<Percentile, InputError> {
        // The same bounds as those of the annotation `slo-percentile`.
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

    fn add_model(&mut self, text: &ModelText) -> Result<(), InputError> {
        let name = text.name.get_ref().clone();
        if name.is_empty() || self.models.iter().any(|model| model.name == name) {
            let found = format!("{name:?}");
            let allowed = "a name that no other model has";
            return Err(self.text.wrong(text.name.span(), &found, allowed));
        }
        let token = |value: &Option<Spanned<f64>>| match value {
            None => Ok(0.0),
            Some(value) => self.text.number(value, NOT_NEGATIVE, ZERO_OR_MORE),
        };
        let model = Model {
            name,
            weights_mb: self.text.number(&text.weights_mb, POSITIVE, ABOVE_ZERO)?,
            execution_ms: self.positive(text.execution_ms.as_ref())?,
            native_ms: self.positive(text.native_ms.as_ref())?,
            footprint_mb: self.positive(text.footprint_mb.as_ref())?,
            per_token_ms: [
                token(&text.ms_per_input_token)?,
                token(&text.ms_per_output_token)?,
            ],
            in_turn: text.in_turn.unwrap_or(true),
        };
        self.models.push(model);
        Ok(())
    }
}

impl Functions {
    /// Parses a file in TOML; `file` is its name in error messages.
    ///
    /// # Errors
    /// Returns the first error, with line and key.
    pub fn from_toml(file: &str, text: &str) -> Result<Self, InputError> {
        let text = Text { file, text };
        let parsed: File = text.read()?;
        let mut reader = Reader {
            text,
            models: Vec::new(),
        };
        for model in &parsed.model {
            reader.add_model(model)?;
        }
        if let Some(models) = &parsed.models {
            if models.get_ref() != "torpor" {
                let found = format!("{:?}", models.get_ref());
                return Err(text.wrong(models.span(), &found, "\"torpor\""));
            }
            // If the user's own models are assigned in turn, Torpor's are not.
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
        let default = reader.settings(&parsed.default)?;
        let mut patterns = Vec::with_capacity(parsed.function.len());
        for function in parsed.function {
            let settings = SettingsText {
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
                settings: reader.settings(&settings)?,
            });
        }
        Ok(Self {
            models: reader.models,
            patterns,
            default,
        })
    }

    /// Returns the first pattern that matches a name.
    #[must_use]
    pub fn pattern(&self, name: &str) -> Option<&Pattern> {
        self.patterns
            .iter()
            .find(|pattern| fits(&pattern.name, name))
    }

    /// Returns the model assigned to function number `at` if no model is named for it; `None` if no model is assigned in turn.
    #[must_use]
    pub fn in_turn(&self, at: usize) -> Option<usize> {
        let mut turns = (0..self.models.len()).filter(|&model| self.models[model].in_turn);
        let count = turns.clone().count();
        turns.nth(at.checked_rem(count)?)
    }

    /// Returns the index of the model with this name.
    #[must_use]
    pub fn model(&self, name: &str) -> Option<usize> {
        self.models.iter().position(|model| model.name == name)
    }
}

/// Returns whether a name matches a pattern, in which `*` matches any text.
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
    fn a_star_matches_any_text() {
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
    fn the_first_match_applies() {
        let functions = Functions::from_toml("f", OWN).unwrap();
        let settings = &functions.pattern("xyz").unwrap().settings;
        assert_eq!(
            settings.objective,
            Some(Objective {
                ms: 20.0,
                factor: 0.0
            })
        );
        assert_eq!(settings.percentile, Some(Percentile::P99));
        assert_eq!(settings.model, Some(0));
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
    fn errors_name_line_and_key() {
        for (from, to, expected) in [
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
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
