//! Execution of a template for a request.

use std::borrow::Cow;
use std::cell::Cell;
use std::cmp::Ordering;
use std::fmt::Write as _;

use super::go::{self, escape_query};
use super::value::{Record, RevisionInfo, Subject, Value};
use super::{Command, Function, Name, Node, Operand, Pipeline, Template};

/// The error of a template that fails on a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct RunError {
    /// Path of the failed field from the record, or name of the failed function.
    pub field: String,
    /// Description of the failure.
    pub why: RunProblem,
}

/// The reason why a template fails on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RunProblem {
    /// The value has no field or method of this name.
    #[error("no such field or method")]
    NoField,
    /// The field belongs to a value that is nil for this request.
    #[error("field of a value that is nil for this request")]
    FieldOfNil,
    /// The request does not have the named cookie.
    #[error("the request has no such cookie")]
    NoCookie,
    /// The arguments do not fit the function or method.
    #[error("wrong arguments")]
    Arguments,
    /// The compared values have different types, or one without an order.
    #[error("incompatible types for comparison")]
    Comparison,
    /// The value is a structure, which has no printed form.
    #[error("a structure cannot be printed; use one of its fields")]
    Structure,
}

impl RunProblem {
    fn at(self, field: impl Into<String>) -> RunError {
        RunError {
            field: field.into(),
            why: self,
        }
    }
}

impl Template {
    /// Executes the template for a request and returns the resulting line.
    ///
    /// # Errors
    /// Returns an error for failures that depend on the request: a field of a nil value, or arguments that do not fit.
    pub fn run(&self, record: &Record, revision: &RevisionInfo) -> Result<String, RunError> {
        let mut out = String::with_capacity(512);
        let subject = Subject {
            record,
            revision,
            is_form_read: &Cell::new(false),
        };
        subject.nodes(&self.nodes, &mut out)?;
        Ok(out)
    }
}

impl<'a> Subject<'a> {
    fn nodes(self, nodes: &'a [Node], out: &mut String) -> Result<(), RunError> {
        for node in nodes {
            match node {
                Node::Text(text) => out.push_str(text),
                Node::Output(pipeline) => {
                    let value = self.pipeline(pipeline)?;
                    if !self.write(&value, out) {
                        return Err(RunProblem::Structure.at("the output"));
                    }
                }
                Node::If(branches, otherwise) => {
                    let mut chosen = otherwise;
                    for (condition, guarded) in branches {
                        if self.is_true(&self.pipeline(condition)?) {
                            chosen = guarded;
                            break;
                        }
                    }
                    self.nodes(chosen, out)?;
                }
            }
        }
        Ok(())
    }

    fn pipeline(self, pipeline: &'a Pipeline) -> Result<Value<'a>, RunError> {
        let mut piped = None;
        for command in &pipeline.0 {
            piped = Some(self.command(command, piped)?);
        }
        Ok(piped.unwrap_or(Value::Nil))
    }

    fn command(
        self,
        command: &'a Command,
        piped: Option<Value<'a>>,
    ) -> Result<Value<'a>, RunError> {
        if let Operand::Function(function @ (Function::And | Function::Or)) = command.head {
            return self.first(&command.arguments, piped, function == Function::Or);
        }
        let mut arguments = Vec::with_capacity(command.arguments.len() + 1);
        for argument in &command.arguments {
            arguments.push(self.operand(argument)?);
        }
        arguments.extend(piped);
        match &command.head {
            Operand::Function(function) => self.call(*function, &arguments),
            Operand::Fields(names) => self.fields(Value::Root, names, &arguments),
            Operand::Group(inner, names) => self.fields(self.pipeline(inner)?, names, &arguments),
            head if arguments.is_empty() => self.operand(head),
            _ => Err(RunProblem::Arguments.at("a value")),
        }
    }

    fn operand(self, operand: &'a Operand) -> Result<Value<'a>, RunError> {
        Ok(match operand {
            Operand::Text(text) => Value::Text(Cow::Borrowed(text)),
            Operand::Integer(value) => Value::Integer(*value),
            Operand::Float(value) => Value::Float(*value),
            Operand::Bool(value) => Value::Bool(*value),
            Operand::Nil => Value::Nil,
            Operand::Fields(names) => self.fields(Value::Root, names, &[])?,
            Operand::Group(inner, names) => self.fields(self.pipeline(inner)?, names, &[])?,
            Operand::Function(function) => self.call(*function, &[])?,
        })
    }

    /// Returns the value at the end of a field path, of which the last member takes the arguments.
    fn fields(
        self,
        of: Value<'a>,
        names: &[Name],
        arguments: &[Value<'a>],
    ) -> Result<Value<'a>, RunError> {
        let mut value = of;
        for (at, name) in names.iter().enumerate() {
            let is_last = at + 1 == names.len();
            let found = if is_last && !arguments.is_empty() {
                self.method(&value, &name.text, arguments)
            } else if matches!(value, Value::Nil) {
                Err(RunProblem::FieldOfNil)
            } else {
                self.field(&value, &name.text).ok_or(RunProblem::NoField)
            };
            value = found.map_err(|why| {
                let path = names[..=at].iter().map(|name| format!(".{}", name.text));
                why.at(path.collect::<String>())
            })?;
        }
        Ok(value)
    }

    /// Calls a method with arguments.
    fn method(
        self,
        of: &Value<'a>,
        method: &str,
        arguments: &[Value<'a>],
    ) -> Result<Value<'a>, RunProblem> {
        let owned = |text: &str| Value::Text(Cow::Owned(text.to_owned()));
        Ok(match (of, method, arguments) {
            (Value::Headers, "Get", [Value::Text(name)]) => Value::Text(self.header(name)),
            (Value::Headers, "Values", [Value::Text(name)]) => {
                Value::List(self.header_values(name))
            }
            (Value::Trailers(values), "Get", [Value::Text(name)]) => {
                let values = values.get(&*go::canonical(name));
                owned(values.and_then(|values| values.first()).map_or("", |it| it))
            }
            (Value::Trailers(values), "Values", [Value::Text(name)]) => {
                let values = values.get(&*go::canonical(name));
                Value::List(values.cloned().unwrap_or_default())
            }
            (Value::Values(values), "Get", [Value::Text(name)]) => {
                let values = values.get(name);
                owned(values.and_then(|values| values.first()).map_or("", |it| it))
            }
            (Value::Values(values), "Has", [Value::Text(name)]) => {
                Value::Bool(values.contains_key(name))
            }
            (Value::Request, "Cookie", [Value::Text(name)]) => {
                let mut cookies = self.cookies().filter(|cookie| cookie.name == name);
                cookies
                    .next()
                    .map(Value::Cookie)
                    .ok_or(RunProblem::NoCookie)?
            }
            (Value::Request, "CookiesNamed", [Value::Text(name)]) => Value::Cookies(
                self.cookies()
                    .filter(|cookie| cookie.name == name)
                    .collect(),
            ),
            (Value::Request, "FormValue", [Value::Text(name)]) => {
                self.is_form_read.set(true);
                let form = self.query();
                let values = form.get(name);
                owned(values.and_then(|values| values.first()).map_or("", |it| it))
            }
            (Value::Request, "PostFormValue", [Value::Text(_)]) => {
                self.is_form_read.set(true);
                // The body has been passed on, so that no form can be read from it.
                owned("")
            }
            (Value::Request, "PathValue", [Value::Text(_)]) => owned(""),
            (Value::Request, "ProtoAtLeast", [Value::Integer(major), Value::Integer(minor)]) => {
                let part = |name| match self.field(&Value::Request, name) {
                    Some(Value::Integer(value)) => value,
                    _ => 0,
                };
                let version = (part("ProtoMajor"), part("ProtoMinor"));
                Value::Bool(version >= (*major, *minor))
            }
            (Value::Nil, ..) => return Err(RunProblem::FieldOfNil),
            _ => return Err(RunProblem::Arguments),
        })
    }

    fn call(self, function: Function, arguments: &[Value<'a>]) -> Result<Value<'a>, RunError> {
        let owned = |text: String| Value::Text(Cow::Owned(text));
        let no_order = || RunProblem::Comparison.at(function.name());
        let wrong = || RunProblem::Arguments.at(function.name());
        Ok(match (function, arguments) {
            (Function::Js, _) => owned(escape_js(&self.print(arguments, Print::Escaped)?)),
            (Function::Html, _) => owned(escape_html(&self.print(arguments, Print::Escaped)?)),
            (Function::UrlQuery, _) => owned(escape_query(&self.print(arguments, Print::Escaped)?)),
            (Function::Print, _) => owned(self.print(arguments, Print::Plain)?),
            (Function::Println, _) => owned(self.print(arguments, Print::Line)? + "\n"),
            (Function::Len, [value]) => Value::Integer(self.length(value).ok_or_else(wrong)?),
            (Function::Not, [value]) => Value::Bool(!self.is_true(value)),
            (Function::Index, [of, keys @ ..]) => self.index(of, keys).ok_or_else(wrong)?,
            (Function::Eq, [first, others @ ..]) if !others.is_empty() => {
                let mut is_equal = false;
                for other in others {
                    is_equal |= equal(first, other).ok_or_else(no_order)?;
                }
                Value::Bool(is_equal)
            }
            (Function::Ne, [a, b]) => Value::Bool(!equal(a, b).ok_or_else(no_order)?),
            (Function::Lt, [a, b]) => {
                Value::Bool(compare(a, b).ok_or_else(no_order)? == Ordering::Less)
            }
            (Function::Le, [a, b]) => {
                Value::Bool(compare(a, b).ok_or_else(no_order)? != Ordering::Greater)
            }
            (Function::Gt, [a, b]) => {
                Value::Bool(compare(a, b).ok_or_else(no_order)? == Ordering::Greater)
            }
            (Function::Ge, [a, b]) => {
                Value::Bool(compare(a, b).ok_or_else(no_order)? != Ordering::Less)
            }
            _ => return Err(wrong()),
        })
    }

    /// Returns the first value whose truth is `wanted`, else the last one. Later operands are not evaluated.
    fn first(
        self,
        operands: &'a [Operand],
        piped: Option<Value<'a>>,
        wanted: bool,
    ) -> Result<Value<'a>, RunError> {
        let mut last = Value::Nil;
        for operand in operands {
            last = self.operand(operand)?;
            if self.is_true(&last) == wanted {
                return Ok(last);
            }
        }
        Ok(piped.unwrap_or(last))
    }

    /// Formats values as Go's `Sprint`, with a space between two values if neither is a text, or as `Sprintln`, with a
    /// space between all values.
    fn print(self, values: &[Value<'a>], how: Print) -> Result<String, RunError> {
        let mut out = String::new();
        for (at, value) in values.iter().enumerate() {
            let is_text = |value: &Value<'_>| matches!(value, Value::Text(_));
            let spaced = how == Print::Line;
            if at > 0 && (spaced || (!is_text(value) && !is_text(&values[at - 1]))) {
                out.push(' ');
            }
            if how != Print::Escaped && value.is_pointer() {
                out.push('&');
            }
            if !self.write(value, &mut out) {
                return Err(RunProblem::Structure.at("print"));
            }
        }
        Ok(out)
    }

    fn length(self, value: &Value<'a>) -> Option<i64> {
        let length = match value {
            Value::Text(text) => text.len(),
            Value::List(list) => list.len(),
            Value::Headers => self.record.headers.keys_len(),
            Value::Trailers(values) | Value::Values(values) => values.len(),
            Value::Cookies(cookies) => cookies.len(),
            _ => return None,
        };
        Some(i64::try_from(length).unwrap_or(i64::MAX))
    }

    fn index(self, of: &Value<'a>, keys: &[Value<'a>]) -> Option<Value<'a>> {
        let mut value = of.clone();
        for key in keys {
            value = match (&value, key) {
                (Value::Headers, Value::Text(name)) => Value::List(self.header_values(name)),
                (Value::Trailers(values) | Value::Values(values), Value::Text(name)) => {
                    Value::List(values.get(name).cloned().unwrap_or_default())
                }
                (Value::List(list), Value::Integer(at)) => {
                    Value::Text(list.get(usize::try_from(*at).ok()?)?.clone())
                }
                (Value::Cookies(cookies), Value::Integer(at)) => {
                    Value::Cookie(cookies.get(usize::try_from(*at).ok()?)?.clone())
                }
                _ => return None,
            };
        }
        Some(value)
    }
}

/// How values are concatenated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Print {
    /// As by `print`, with an ampersand before pointers.
    Plain,
    /// As by `println`, with an ampersand before pointers.
    Line,
    /// As for an escaping function, without the ampersand before pointers.
    Escaped,
}

/// Returns whether two values are equal, or `None` if they cannot be compared.
fn equal(a: &Value<'_>, b: &Value<'_>) -> Option<bool> {
    match (a, b) {
        (Value::Nil, other) | (other, Value::Nil) => other.is_nil(),
        _ => compare(a, b).map(Ordering::is_eq),
    }
}

fn compare(a: &Value<'_>, b: &Value<'_>) -> Option<Ordering> {
    match (a, b) {
        (Value::Text(a), Value::Text(b)) => Some(a.cmp(b)),
        (Value::Integer(a), Value::Integer(b)) => Some(a.cmp(b)),
        (Value::Float(a), Value::Float(b)) => a.partial_cmp(b),
        (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
        _ => None,
    }
}

/// Escapes a text for the inside of a JavaScript or JSON string, as Go's `js` does.
fn escape_js(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' | '\'' | '"' => {
                out.push('\\');
                out.push(c);
            }
            '<' | '>' | '&' | '=' => push_code(&mut out, c),
            c if c.is_control() || is_invisible(c) => push_code(&mut out, c),
            c => out.push(c),
        }
    }
    out
}

/// Returns whether a character is an invisible format character, such as a line separator or a direction mark.
const fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

fn push_code(out: &mut String, c: char) {
    // Writing to memory does not fail.
    let _written = write!(out, "\\u{:04X}", u32::from(c));
}

fn escape_html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\0' => out.push('\u{FFFD}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests;
