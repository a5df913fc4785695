//! Frames of a saved profile, with their names.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

use crate::symbol::{
    Function, InlinedFunction, Language, Location, Symbol, UnknownReason, UnnamedFunction,
};
use crate::{Frame, FrameKind, ModuleId};

/// A frame with its symbol, if it was looked up. Kept small, because there may be many.
#[derive(Deserialize)]
#[serde(try_from = "Fields<'_>")]
pub(super) struct NamedFrame {
    pub frame: Frame,
    pub symbol: Option<Arc<Symbol>>,
}

impl Serialize for NamedFrame {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        Fields::from(self).serialize(s)
    }
}

/// Either a module and an offset, or an address. Code also has the name of its function, or the reason why it has none.
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    module: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    language: Option<Cow<'a, str>>,
    /// The substitute for the name of a function without a symbol.
    #[serde(skip_serializing_if = "Option::is_none")]
    unnamed: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset_in_function: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    inlined: Vec<Inlined<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    no_name: Option<Cow<'a, str>>,
}

#[derive(Serialize, Deserialize)]
struct Inlined<'a> {
    function: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

/// The text of a frame that was not looked up.
const NOT_LOOKED_UP: &str = "not looked up";

fn file(location: Option<&Location>) -> Option<Cow<'_, str>> {
    location.map(|location| Cow::Borrowed(&*location.file))
}

fn line(location: Option<&Location>) -> Option<u32> {
    location.and_then(|location| location.line)
}

fn location(file: Option<Cow<'_, str>>, line: Option<u32>) -> Option<Location> {
    let file = file?.into_owned();
    Some(Location { file, line })
}

impl<'a> From<&'a NamedFrame> for Fields<'a> {
    fn from(named: &'a NamedFrame) -> Fields<'a> {
        let (module, offset) = match named.frame.kind() {
            FrameKind::Code(module, offset) => (Some(module.0), Some(offset)),
            FrameKind::Unmapped(address) => {
                return Fields {
                    address: Some(address),
                    ..Fields::default()
                };
            }
        };
        let name = match named.symbol.as_deref() {
            Some(Symbol::Known(function)) => Fields::from(function),
            Some(Symbol::Unnamed(function)) => Fields {
                unnamed: Some((&function.name).into()),
                offset_in_function: Some(function.offset_in_function),
                ..Fields::default()
            },
            Some(Symbol::Unknown(why)) => Fields {
                no_name: Some(why.to_string().into()),
                ..Fields::default()
            },
            None => Fields {
                no_name: Some(NOT_LOOKED_UP.into()),
                ..Fields::default()
            },
        };
        Fields {
            module,
            offset,
            ..name
        }
    }
}

/// Names are complete, including Rust's hashes, because saved profiles are read back.
impl<'a> From<&'a Function> for Fields<'a> {
    fn from(function: &'a Function) -> Fields<'a> {
        let place = function.location.as_ref();
        let inlined = function.inlined.iter().map(|inlined| Inlined {
            function: (&inlined.name).into(),
            file: file(inlined.location.as_ref()),
            line: line(inlined.location.as_ref()),
        });
        Fields {
            function: Some((&function.name).into()),
            language: Some(function.language.name().into()),
            offset_in_function: Some(function.offset_in_function),
            first_line: function.first_line,
            file: file(place),
            line: line(place),
            inlined: inlined.collect(),
            ..Fields::default()
        }
    }
}

impl TryFrom<Fields<'_>> for NamedFrame {
    type Error = String;

    fn try_from(fields: Fields<'_>) -> Result<NamedFrame, String> {
        let frame = match (fields.module, fields.offset, fields.address) {
            (Some(module), Some(offset), None) => {
                let frame = Frame::code(ModuleId(module), offset);
                let same = FrameKind::Code(ModuleId(module), offset);
                (frame.kind() == same).then_some(frame)
            }
            (None, None, Some(address)) => {
                let frame = Frame::unmapped(address);
                (frame.kind() == FrameKind::Unmapped(address)).then_some(frame)
            }
            _ => return Err("a frame has either a module and an offset, or an address".to_owned()),
        };
        let frame =
            frame.ok_or("a frame's module, offset or address is larger than any that exists")?;
        let offset_in_function = fields.offset_in_function.unwrap_or_default();
        let symbol = match (fields.function, fields.unnamed, fields.no_name) {
            (Some(name), None, None) => Some(Symbol::Known(Function {
                name: name.into_owned(),
                language: fields
                    .language
                    .and_then(|name| Language::by_name(&name))
                    .unwrap_or(Language::Other),
                offset_in_function,
                first_line: fields.first_line,
                inlined: fields
                    .inlined
                    .into_iter()
                    .map(|inlined| InlinedFunction {
                        name: inlined.function.into_owned(),
                        location: location(inlined.file, inlined.line),
                    })
                    .collect(),
                location: location(fields.file, fields.line),
            })),
            (None, Some(name), None) => Some(Symbol::Unnamed(UnnamedFunction {
                name: name.into_owned(),
                offset_in_function,
            })),
            (None, None, Some(why)) if why != NOT_LOOKED_UP => {
                Some(Symbol::Unknown(UnknownReason::from_text(&why)))
            }
            (None, None, _) => None,
            _ => return Err("a frame has either a function or a reason for having none".to_owned()),
        };
        Ok(NamedFrame {
            frame,
            symbol: symbol.map(Arc::new),
        })
    }
}
