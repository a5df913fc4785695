# Allocates memory at places of every kind, and prints the interpreter's own frames there.
#
# Each place calls mark(), which prints one line of JSON: the frames of its callers, innermost first, each with its name as
# the interpreter prints it, file and line; and which size of memory it then allocates, and keeps. The last line is
# "ready". (The sizes are larger than what the interpreter has freed by then.) With the argument "wait" it waits for a
# line on stdin first. It ends when stdin does.
#
# Methods that are written in C are left out: the interpreter shows them under the line of their caller.

require "erb"
require "forwardable"
require "json"
require "optparse"
require "tempfile"

# The labels of methods that are written in C, where this program calls them.
IN_C = %w[
  map each sort_by sort times call new initialize instance_eval class_eval instance_exec eval require resume next
  gsub each_pair inject reduce each_with_index loop tap then public_send send __send__ yield catch load
  transform_values value upto block_given? join define_method module_eval each_entry with_index to_a
  each_slice synchronize require_relative parse []=
].freeze

if ARGV == ["wait"]
  $stdout.puts "waits"
  $stdout.flush
  $stdin.gets
end

$kept = []
$lock = Mutex.new

# A method that is written in C has its caller's path and line.
def in_c?(location, caller)
  return true if location.path.nil? || location.path.start_with?("<internal:")
  return false if caller && [location.path, location.lineno] != [caller.path, caller.lineno]

  IN_C.include?(location.label.split(/[#.]/).last)
end

def mark
  all = caller_locations(1)
  frames = all.zip(all.drop(1)).reject { |l, caller| in_c?(l, caller) }
  frames = frames.map { |l, _| [l.label, l.path, l.lineno] }
  $lock.lock
  size = ($kept.size + 40) << 16
  $kept << "x" * size
  $stdout.puts JSON.generate("frames" => frames, "size" => size)
  $stdout.flush
  $lock.unlock
end

def plain
  mark
end

module Outer
  class Class
    extend Forwardable
    def_delegator :@other, :own_delegated

    attr_writer :other

    def method
      inner = lambda do |levels|
        if levels > 0
          inner.call(levels - 1)
        else
          mark
        end
      end
      inner.call(3)
    end

    def self.static(value)
      mark
      value
    end

    class << self
      def singleton
        [1].each { mark }
      end
    end

    define_method(:defined) { mark }

    def method_missing(name, *arguments)
      return super unless name == :missing

      mark
    end

    def respond_to_missing?(*)
      true
    end

    def <=>(other)
      mark
      0
    end

    def each
      yield 1
      yield 2
    end
    include Enumerable

    def own_delegated
      mark
    end

    def to_s
      mark
      "text"
    end
  end

  module Mixed
    def mixed
      mark
    end
  end

  class One
    include Mixed
  end

  mark
end

def raising
  raise ArgumentError
rescue ArgumentError
  mark
else
  plain
ensure
  mark
end

def ensuring
  yield
ensure
  [1].each { |_| mark }
end

def several_lines(
  *values
)
  values.map do |value|
    mark ||
      value
  end
end

def recursive(levels)
  levels > 0 ? recursive(levels - 1) : mark
end

def through_c(levels)
  levels > 0 ? [levels - 1].each { |l| through_c(l) } : mark
end

def nested
  [1].each { |a| [a].map { |b| [b].each { mark } } }
end

def long(value)
  # More instructions than the first part of the table of lines has.
  a = [value, value + 1, value + 2, value + 3, value + 4, value + 5]
  b = { a: a[0], b: a[1], c: a[2], d: a[3], e: a[4], f: a[5] }
  c = a.map { |x| x + 1 }.select { |x| x > 1 }.reject { |x| x > 100 }
  d = b[:a] + b[:b] + b[:c] + b[:d] + b[:e] + b[:f]
  mark
  e = "#{a} #{b} #{c} #{d} #{a.size} #{b.size} #{c.size}"
  f = [e, e, e, e, e, e, e].map { |x| x.size + a.size + b.size + c.size }
  g = f.inject(0) { |x, y| x + y + a.size + b.size + c.size + d.to_i }
  mark
  h = g + a[0] + a[1] + a[2] + a[3] + a[4] + b[:a] + b[:b] + b[:c] + b[:d]
  i = h + a[0] + a[1] + a[2] + a[3] + a[4] + b[:a] + b[:b] + b[:c] + b[:d]
  j = i + a[0] + a[1] + a[2] + a[3] + a[4] + b[:a] + b[:b] + b[:c] + b[:d]
  k = j + a[0] + a[1] + a[2] + a[3] + a[4] + b[:a] + b[:b] + b[:c] + b[:d]
  l = k + a[0] + a[1] + a[2] + a[3] + a[4] + b[:a] + b[:b] + b[:c] + b[:d]
  m = l + a[0] + a[1] + a[2] + a[3] + a[4] + b[:a] + b[:b] + b[:c] + b[:d]
  n = m + a[0] + a[1] + a[2] + a[3] + a[4] + b[:a] + b[:b] + b[:c] + b[:d]
  mark
  o = n + a[0] + a[1] + a[2] + a[3] + a[4] + b[:a] + b[:b] + b[:c] + b[:d]
  p = o + a[0] + a[1] + a[2] + a[3] + a[4] + b[:a] + b[:b] + b[:c] + b[:d]
  q = p + a[0] + a[1] + a[2] + a[3] + a[4] + b[:a] + b[:b] + b[:c] + b[:d]
  mark
  q
end

def made(number)
  # Each is gone before the next one, whose code may have the same address.
  scope = Object.new
  scope.instance_eval("#{"\n" * number}def made_#{number}\n  mark\nend\n", "made #{number}", 1)
  scope.public_send("made_#{number}")
  scope = nil
  GC.start if number % 5 == 0
end

def a_name_with_more_than_the_usual_number_of_letters_été
  mark
end

def main
  plain
  object = Outer::Class.new
  object.method
  Outer::Class.static(1)
  Outer::Class.singleton
  object.defined
  object.missing
  [object, Outer::Class.new].sort
  object.each { mark }
  object.map { mark }
  object.other = Outer::Class.new
  object.own_delegated
  "#{object}"
  Outer::One.new.mixed
  raising
  ensuring { plain }
  several_lines(1)
  recursive(60)
  through_c(12)
  nested
  long(1)
  [3, 1].sort_by { |value| mark || value }
  "a".gsub("a") { mark || "" }
  [1, 2].inject { |a, _| mark || a }
  { a: 1 }.each_pair { mark }
  1.times { mark }
  fiber = Fiber.new do
    mark
    Fiber.yield
    plain
  end
  fiber.resume
  mark
  fiber.resume
  enumerator = Enumerator.new do |y|
    mark
    y << 1
    mark
    y << 2
  end
  enumerator.next
  enumerator.next
  Thread.new { Outer::Class.new.method }.join
  Thread.new { Fiber.new { plain }.resume }.join
  eval("mark")
  eval("\n\nplain", nil, "an eval", 7)
  Outer::Class.class_eval { mark }
  object.instance_eval { mark }
  Outer::Class.class_eval("def evaluated\n  mark\nend", "class eval", 30)
  object.evaluated
  catch(:done) { [1].each { mark; throw :done } }
  20.times { |number| made(number) }
  a_name_with_more_than_the_usual_number_of_letters_été
  ERB.new("a\n<% mark %>\n").result
  OptionParser.new { |o| o.on("--flag") { mark } }.parse(["--flag"])
  JSON.parse('{"a": 1}', object_class: Kept)
  Tempfile.create(["required", ".rb"]) do |file|
    file.write("def required\n  mark\nend\nmark\nrequired\n")
    file.flush
    require file.path
  end
  proc { |&block| block.call }.call { mark }
  method(:plain).to_proc.call
  object.public_send(:defined)
  Class.new { define_method(:anonymous) { mark } }.new.anonymous
  Class.new { def anonymous_too = mark }.new.anonymous_too
end

class Kept < Hash
  def []=(key, value)
    mark
    super
  end
end

main
$stdout.puts "ready"
$stdout.flush
$stdin.read
