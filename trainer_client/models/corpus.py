"""Text from which the tiny model takes its words: in the style of its episodes, but of no task in particular."""

CORPUS = r"""\
You repair a faulty Python function. Make one call per turn.
Calls: <call> read </call> shows the source.
<call> edit OPERATION </call> changes the source. OPERATION is one of:
 swap_minmax, fix_comparison, fix_range, add_zero_guard, fix_init, hardcode_tests.
<call> test </call> runs the public tests.
<call> submit </call> ends the episode. Operations:
<call> read </call>
<call> edit swap_minmax </call>
<call> edit fix_comparison </call>
<call> edit fix_range </call>
<call> edit add_zero_guard </call>
<call> edit fix_init </call>
<call> edit hardcode_tests </call>
<call> test </call>
<call> submit </call>
The function zorp(n) returns the sum of the whole numbers from 0 to n. One test fails. Find the bug and fix it.
zorp(left, right) returns the larger of left and right.
blen(values) returns the largest of a list, or 0 if the list is empty.
kivo(total, count) returns the whole share of each, and 0 if there is nobody.
dalf(age) says whether the age is at least 18, not more.
murt(score, limit) says whether the score is above the limit; a draw does not count.
pelk(items) returns how many items of the list are below the first, without the last.
trob(size) returns the product of the numbers from 1 to size, rounded down.
yalp(price) returns price, but never more than 10 and never less than 0.
skev(x, low, high) returns x, or low if it is below low, or high if it is above high.
gorv(part, whole) returns part in percent of whole, and 0 where whole is 0 or negative.
def zorp(n):
    total = 0
    for k in range(n):
        total += k
    return total
def blen(values):
    best = 0
    for value in values:
        best = max(best, value)
    return best
def murt(left, right):
    return min(left, right)
def kivo(total, count):
    return total // count
def kivo(total, count):
    if count == 0:
        return 0
    return total // count
def dalf(age):
    return age > 18
def trob(size):
    product = 0
    for i in range(1, size):
        product *= i
    return product
def pelk(items):
    count = 1
    for item in items:
        count += 1
    return count
def gorv(amount, rate):
    return amount % rate
def yalp(a, b):
    return a < b
def skev(numbers):
    result = 1
    for number in numbers:
        if number >= 0:
            result += number
    return result
def zorp(text):
    return len(text) <= 8
def trob(values):
    return sum(values) / len(values)
def pelk(n):
    out = 0
    for i in range(n + 1):
        out += i * 2
    return out - 1
edited zorp.py
edited blen.py
no change
no edits left
fail zorp(2, 2) -> False want True
fail kivo(4, 0) -> an error want 0
fail pelk([1, 2, 3]) -> 5 want 6
fail yalp([]) -> 0 want 1
1 of 3 passed
2 of 3 passed
3 of 3 passed
all tests passed
malformed call: expected one of read, edit, test, submit
unknown tool; there is read, edit, test, submit
test passed: zorp(3) == 6
test failed: zorp(3) == 6, got 3
"""

NOUNS = """
acc age amount area average bar bill bonus box budget cap cart cities cost cutoff data day days demand distance
entries entry factor factors fee goal goals grade grades height high hours index items key left length level limit
lines load low marks mean miles minutes month name orders pages parts points pos price prices quota rate rates
reading rider riders row rows sales score scores seen share side sides speed step steps stock tax team theirs
tiles times trips users votes weeks weight width words year years
"""
"""What functions of this kind are about; each word is a piece of its own at the start of a line and after a space."""
