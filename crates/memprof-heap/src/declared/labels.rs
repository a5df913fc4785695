//! The names of declared types.

use memprof_code::symbolize::types::{DebugTypes, TypeId, pretty};

/// Part of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Form {
    /// One object, to which a pointer leads.
    One,
    /// An array, to which a pointer leads.
    Many,
    /// The elements of a container.
    Buffer,
    /// One of the nodes of a container.
    Node,
    /// The buckets of a hash table.
    Buckets,
}

/// A declared type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Label {
    /// The type of the object, or of the elements.
    pub of: TypeId,
    pub form: Form,
    /// The container whose memory it is.
    pub container: Option<TypeId>,
    /// The type that the container, or the pointer, is a part of.
    pub owner: Option<TypeId>,
    /// The type of the container's nodes.
    pub node: Option<TypeId>,
}

impl Label {
    /// How much it says: a pointer to characters may lead to anything, and an array of objects is less certain than one object.
    pub(super) fn rank(self, is_plain: bool) -> u8 {
        match (self.form, is_plain) {
            (Form::Buffer | Form::Node | Form::Buckets, _) => 4,
            (Form::One, false) => 3,
            (Form::Many, false) => 2,
            (Form::One | Form::Many, true) => 1,
        }
    }

    pub(super) fn name(self, types: &mut DebugTypes) -> String {
        let mut name_of = |id: TypeId| pretty(&types.get(id).name);
        let of = name_of(self.of);
        let container = self.container.map(&mut name_of);
        let own = match (self.form, container) {
            (Form::One, _) => of,
            (Form::Buffer, Some(container)) if container.ends_with("string") => {
                format!("text of {container}")
            }
            (Form::Buffer, Some(container)) if container == "String" => "text of String".to_owned(),
            (Form::Buffer, Some(container)) => format!("buffer of {container}"),
            (Form::Node, Some(container)) => format!("node of {container}"),
            (Form::Buckets, Some(container)) => format!("buckets of {container}"),
            _ => format!("{of}[]"),
        };
        match self.owner {
            Some(owner) => format!("{own} in {}", name_of(owner)),
            None => own,
        }
    }
}
